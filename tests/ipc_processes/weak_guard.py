"""Programs for nurseries whose guards lack something, as on a host that refuses it: in place of `nursery.PROGRAM`."""


def _program(lack):
    return ("-c", f"import sys\n{lack}\nfrom mlxe_async.ipc.processes.nursery_main import main\nmain(sys.argv[1:])")


NO_ADOPTION = _program("""
from mlxe_async.ipc.processes import linux
def refuse():
    raise PermissionError(1, "prctl(36): Operation not permitted")
linux.adopt_orphans = refuse
""")
NO_FORK = _program("""
import os
real = os.fork
def refuse():
    os.fork = real
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = refuse
""")
NO_ADDRESS = _program("""
from mlxe_async.ipc.processes import linux
linux.command_line_area = lambda: None
""")
BROKEN = _program("""
from mlxe_async.ipc.processes import guard
def fail(*_):
    raise ValueError("a defect of the guard")
guard._guard = fail
""")
ENDLESS = _program("""
from mlxe_async.ipc.processes import guard
def sweep(*_):
    import time
    time.sleep(1e6)
guard._sweep = sweep
""")
