"""How fast does this machine read memory, and how fast does it multiply and add?"""

import sys
from pathlib import Path

from trivet.cli import main

RESULTS = Path(__file__).parent / "results" / "limits.csv"

if __name__ == "__main__":
    RESULTS.parent.mkdir(exist_ok=True)
    main(["bench", "limits", "--csv", str(RESULTS), *sys.argv[1:]])
