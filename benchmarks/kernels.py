"""How near its roof is each kernel of a model's steps?"""

import sys
from pathlib import Path

from trivet.cli import main

RESULTS = Path(__file__).parent / "results" / "kernels.csv"

if __name__ == "__main__":
    RESULTS.parent.mkdir(exist_ok=True)
    main(["bench", "kernels", "--csv", str(RESULTS), *sys.argv[1:]])
