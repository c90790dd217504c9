"""Asks for a page by libcurl again and again, on one connection: curl_client.py LIBRARY SECONDS URL.

Prints the microseconds of each request, and last its own CPU time in nanoseconds.
"""

import ctypes
import sys
import time

library, seconds, url = sys.argv[1], float(sys.argv[2]), sys.argv[3]

# curl.h
URL, VERIFY_PEER, VERIFY_HOST, HTTP_VERSION, WRITE_FUNCTION = 10002, 64, 81, 84, 20011
HTTP_1_1 = 2

curl = ctypes.CDLL(library)
curl.curl_easy_init.restype = ctypes.c_void_p
curl.curl_global_init(3)
handle = ctypes.c_void_p(curl.curl_easy_init())
discard = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)(
    lambda data, size, count, to: size * count
)
for option, value in [
    (URL, url.encode()),
    (VERIFY_PEER, ctypes.c_long(0)),
    (VERIFY_HOST, ctypes.c_long(0)),
    (HTTP_VERSION, ctypes.c_long(HTTP_1_1)),
    (WRITE_FUNCTION, discard),
]:
    code = curl.curl_easy_setopt(handle, option, value)
    assert code == 0, (option, code)


def ask():
    code = curl.curl_easy_perform(handle)
    assert code == 0, code


ask()
times = []
cpu, now = time.process_time_ns(), time.perf_counter_ns()
end = now + int(seconds * 1e9)
while now < end:
    before = now
    ask()
    now = time.perf_counter_ns()
    times.append((now - before) / 1000)
cpu = time.process_time_ns() - cpu
print("\n".join(f"{micros:.1f}" for micros in times))
print(cpu)
