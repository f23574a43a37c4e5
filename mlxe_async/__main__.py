"""`python -m mlxe_async`: see `cli`."""

import sys

from mlxe_async.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
