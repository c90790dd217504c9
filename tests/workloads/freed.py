"""Code objects in use, and code objects that were freed, with other texts in the place of what they point to. Prints a line for
each that still has its words in memory: held, frozen or freed, its address, the four words that identify it, and for freed code the
text that stands in the place of its file's name, if there is one. Then DONE, and waits to be killed.
"""

import ctypes
import importlib
import signal
import sys

NAMES = 112 if sys.version_info >= (3, 11) else 104


def words(at, count):
    return list((ctypes.c_uint64 * count).from_address(at))


def compiled(number):
    # Of sizes that either of the allocators serves.
    return compile("a = 1\n" * (number % 40), "/srv/planted/%04d/with-a-long-name/file.py" % number, "exec")


held = [compiled(number) for number in range(100)]
for code in held:
    print("held", id(code), *words(id(code) + NAMES, 4))
# Part of the interpreter: never freed.
code = importlib._bootstrap._find_and_load.__code__
print("frozen", id(code), *words(id(code) + NAMES, 4))
texts = []
for number in range(400):
    code = compiled(number)
    at = id(code)
    before = words(at + NAMES, 4)
    name = before[0]
    del code
    new = ["another-text-%04d-%s" % (number, "x" * 24) for _ in range(4)]
    texts += new
    if words(at + NAMES, 4) != before:
        continue
    found = [text for text in new if id(text) == name]
    print("freed", at, *before, *found)
print("DONE", flush=True)
signal.pause()
