"""Pure functions that several papers share: arrays in, arrays out, no state. One file per idea.

Time is the first axis. `reward[t]` came after `action[t]`; `ends` marks rows after which nothing may flow back.
"""
