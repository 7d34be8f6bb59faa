"""Scripts that run in the environment of the engine they drive: they import nothing of this project.

`worker.py` has the loop; a file for each engine has `start(*words)`: its version, and how it answers prompts. What the
child prints is `@answer {"ready": …}`, then an answer to each JSON line. The questions are those of `questions.py`:
"decode" and "prefill" with the prompts' token ids, and "greedy", which gives tokens instead of seconds.
"""
