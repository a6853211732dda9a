"""What a worker of pytest-xdist runs as a fork of the process that has collected the tests; see `workers`."""

import sys

if __name__ == "__main__":
    # As execnet's own `python -c` does: the first line says how to serve.
    exec(eval(sys.stdin.readline()))
