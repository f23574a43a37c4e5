"""Where the CPU time of an `oa` run goes: `python tests/benchmarks/run.py [settings/oa.toml] [env_steps]`.

Runs the command as a user would, with tests switched off, and prints the share of one core each process used while the
run was learning, and the steps per second.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main():
    file = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "settings" / "oa.toml")
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 30_000
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "mlxe_async", file, "--no-progress",
            "--set", f'run.dir="{folder}"', "--set", f"stop.env_steps={steps}",
            "--set", "stop.episodes=1000000", "--set", "stop.solved=false", "--set", "evaluation.enabled=false",
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        run = Path(folder) / "latest"
        status = json.loads((run / "status.json").read_text())
        with (run / "log.jsonl").open() as log:
            lines = [json.loads(line) for line in log]
    seconds = status["seconds"]
    print(f"{Path(file).name}: {status['env_steps']:,} steps in {seconds:.1f} s, {len(lines):,} log lines")
    print(f"{status['steps_per_second']:,.0f} steps/s, {status['updates'] / seconds:,.0f} updates/s")
    print(f"{'process':<14} {'CPU s':>7} {'of one core':>12}")
    for name, used in status["cpu_seconds"].items():
        print(f"{name:<14} {used:7.2f} {100 * used / seconds:11.1f} %")
    print("(the nursery's time is that of its imports, before the first step)")


if __name__ == "__main__":
    main()
