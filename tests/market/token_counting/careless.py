"""The counting process as if it looked at no file: what strangers' files do to the library, they do for real."""

import sys

from market.token_counting import __main__ as counting

if __name__ == "__main__":
    counting.check_shape = lambda content: content  # type: ignore[attr-defined]
    sys.exit(counting.main())
