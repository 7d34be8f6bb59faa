"""Scripts that run in the environment of the engine they drive: they import nothing of this project.

Each prints `@answer {"ready": …}`, then answers a JSON line with one. The questions are those of `questions.py`:
"decode" and "prefill" with the prompts' token ids, and "greedy", which gives tokens instead of seconds.
"""
