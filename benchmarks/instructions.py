"""Has a step come to take more instructions than it did? Counts, not time, so that a busy machine answers too.

Each case is one step of a small decoder (native/tests/fixed_step.cpp), or a choice of tokens from rows of a vocabulary
(native/tests/fixed_choice.cpp), on one thread under valgrind's callgrind. The counts are those of
benchmarks/results/instructions.json; another compiler gives others, so it is asked by name, and there is nothing to
compare where it differs. valgrind has no AVX-512: the target is avx2.

    python benchmarks/instructions.py build/instructions [--renew]
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

BASELINE = Path(__file__).parent / "results" / "instructions.json"
# What is run with which arguments, and in which function it counts.
CASES = {
    f"{dtype}, {num_tokens} tokens": ("fixed_step", "tv::Program::run*", dtype, str(num_tokens))
    for dtype in ("bfloat16", "int8")
    for num_tokens in (1, 32)
} | {
    f"{sampling}, {num_rows} rows": ("fixed_choice", "tv::Sampler::choose*", sampling, str(num_rows))
    # Greedy takes so few that waking the team, which counts by some hundreds differently each time, would be seen.
    for sampling, num_rows in (("greedy", 128), ("top-p", 8), ("all", 8))
}
TOLERANCE = 0.02  # the same build counts the same to the instruction; a little is left for other patch versions


def count(built: Path, program: str, function: str, *arguments: str) -> int:
    """The instructions of one step, its threads' start and the making of its weights left out."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", f"--toggle-collect={function}",
               str(built / program), "avx2", *arguments]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return int(found[1])


def compiler() -> str:
    version = subprocess.run(["c++", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    return f"c++ {version}"


def main(built: Path, renew: bool) -> int:
    if shutil.which("valgrind") is None:
        print("instructions: not counted, valgrind is not installed (apt-get install valgrind)")
        return 0
    wanted = json.loads(BASELINE.read_text()) if BASELINE.exists() else {"compiler": None, "counts": {}}
    if not renew and wanted["compiler"] != compiler():
        print(f"instructions: not compared, the counts are of {wanted['compiler']}, this is {compiler()}")
        return 0
    counts = {case: count(built, *how) for case, how in CASES.items()}
    if renew:
        BASELINE.write_text(json.dumps({"compiler": compiler(), "counts": counts}, indent=2) + "\n")
        print(f"{BASELINE}: written")
        return 0
    worse = 0
    for case, found in counts.items():
        change = found / wanted["counts"][case] - 1
        worse += change > TOLERANCE
        print(
            f"{case:<20} {found:>12,} instructions, {change:+.2%}{'  more than allowed' if change > TOLERANCE else ''}"
        )
    if worse:
        print(f"find out why; if it is worth it: {sys.executable} {' '.join(sys.argv)} --renew")
    return int(worse > 0)


if __name__ == "__main__":
    arguments = [each for each in sys.argv[1:] if each != "--renew"]
    if len(arguments) != 1:
        sys.exit(__doc__)
    sys.exit(main(Path(arguments[0]), "--renew" in sys.argv))
