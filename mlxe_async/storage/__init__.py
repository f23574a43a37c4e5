"""Files on disk: the run's folder, checkpoints, arrays, crash reports, and what may be written into them.

Its modules:

    run_folder, files                           the run's folder, made and locked; files that are whole or absent
    checkpoints, array_files                    tensors in safetensors, the rest in JSON; arrays as large as a memory
    crash_reports                               what is written about a process that died
    seals, json_checks, safe_text               who made a folder; checked JSON; text without secrets
"""
