"""How many tokens per second does decoding give, to one sequence and to many, and what does the engine take of it?"""

import sys
from pathlib import Path

from trivet.cli import main

RESULTS = Path(__file__).parent / "results" / "decode.csv"

if __name__ == "__main__":
    RESULTS.parent.mkdir(exist_ok=True)
    main(["bench", "decode", "--csv", str(RESULTS), *sys.argv[1:]])
