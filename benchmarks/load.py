"""How long is it from the start of a process to its first token, with cold files and with warm ones?"""

import sys
from pathlib import Path

from trivet.cli import main

RESULTS = Path(__file__).parent / "results" / "load.csv"

if __name__ == "__main__":
    RESULTS.parent.mkdir(exist_ok=True)
    main(["bench", "load", "--csv", str(RESULTS), *sys.argv[1:]])
