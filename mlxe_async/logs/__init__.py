"""The run's story on disk: one JSON object per line, one model per event, readable while it is being written.

`events` says what can be told, `journal` writes it, `reader` reads it back and follows it live, `safe` keeps secrets
and control characters out of everything shown. Nothing is imported here: a mistake in a settings file is reported
before the heavier modules are needed.
"""
