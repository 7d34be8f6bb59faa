"""How many tokens per second of a prompt are read?"""

import sys
from pathlib import Path

from trivet.cli import main

RESULTS = Path(__file__).parent / "results" / "prefill.csv"

if __name__ == "__main__":
    RESULTS.parent.mkdir(exist_ok=True)
    main(["bench", "prefill", "--csv", str(RESULTS), *sys.argv[1:]])
