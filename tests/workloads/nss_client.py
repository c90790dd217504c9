"""Asks for pages by libcurl over NSS: nss_client.py 1.2|1.3 URL..., all on one connection. Ends with an error if one of them
does not come."""

import ctypes
import sys

# curl.h
URL, VERIFY_PEER, VERIFY_HOST, TLS_VERSION, HTTP_VERSION, WRITE_FUNCTION = 10002, 64, 81, 32, 84, 20011
HTTP_1_1 = 2
TLS = {"1.2": 6 | 6 << 16, "1.3": 7 | 7 << 16}

curl = ctypes.CDLL("libcurl-nss.so.4")
curl.curl_easy_init.restype = ctypes.c_void_p
curl.curl_global_init(3)
handle = ctypes.c_void_p(curl.curl_easy_init())
discard = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)(
    lambda data, size, count, to: size * count
)


def choose(option, value):
    code = curl.curl_easy_setopt(handle, option, value)
    assert code == 0, (option, code)


choose(VERIFY_PEER, ctypes.c_long(0))
choose(VERIFY_HOST, ctypes.c_long(0))
choose(TLS_VERSION, ctypes.c_long(TLS[sys.argv[1]]))
choose(HTTP_VERSION, ctypes.c_long(HTTP_1_1))
choose(WRITE_FUNCTION, discard)
for url in sys.argv[2:]:
    choose(URL, url.encode())
    code = curl.curl_easy_perform(handle)
    assert code == 0, (url, code)
