"""The run's story on disk: one JSON object per line, one model per event, readable while it is being written.

`events` says what can be told, `levels` how grave it is, `journal` writes it, by `lines` where lines differ only in
numbers, `subscribers` hear of it, `reader` reads it back and follows it live. Nothing is imported here: a mistake in a
settings file is reported before the heavier modules are needed.
"""
