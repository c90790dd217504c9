"""A server as operators run it, made to call for each request: GET /MODE/ID calls /b/ID/kN/dT of the upstream. Takes its kind
(-X served=KIND), writes its configuration here, says PORT once it listens, and becomes the server."""

import ctypes
import os
import pathlib
import signal
import socket
import sys
import time

UPSTREAM = os.environ["UPSTREAM_PORT"]
# <linux/prctl.h>
PR_SET_PDEATHSIG = 1
HERE = pathlib.Path.cwd()
SOURCES = pathlib.Path(__file__).resolve().parent
DELAYS = [500, 1300, 2100, 3700, 5000, 6400]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def write(name, text):
    path = HERE / name
    path.write_text(text)
    return str(path)


def gunicorn(kind, port):
    concurrent = {
        "sync": ["--workers", "4"],
        "gthread": ["--workers", "2", "--threads", "8"],
        "gevent": ["--workers", "2"],
    }
    os.environ["PYTHONPATH"] = str(SOURCES)
    return ["gunicorn", "-k", kind, *concurrent[kind], "-b", f"127.0.0.1:{port}", "tree_wsgi:application"]


def nginx(_, port):
    # Of two kept connections, which all requests of a worker take turns on; or of a new one each.
    delays = "\n".join(f"~{digit}$ {DELAYS[digit % 6]};" for digit in range(10))
    path = "proxy_pass http://{}/b/$id/k0/d$delay; proxy_http_version 1.1; proxy_set_header Connection '';"
    config = f"""
        daemon off; user root; worker_processes 2; pid {HERE}/nginx.pid; error_log {HERE}/nginx.error;
        events {{ worker_connections 2048; }}
        http {{
            access_log off; client_body_temp_path {HERE}; proxy_temp_path {HERE}; fastcgi_temp_path {HERE};
            uwsgi_temp_path {HERE}; scgi_temp_path {HERE};
            map $msec $delay {{ default 900; {delays} }}
            upstream kept {{ server 127.0.0.1:{UPSTREAM}; keepalive 2; }}
            server {{
                listen 127.0.0.1:{port} backlog=1024;
                location ~ ^/same/(?<id>[^/]+)$ {{ {path.format('kept')} }}
                location ~ ^/new/(?<id>[^/]+)$ {{ {path.format('127.0.0.1:' + UPSTREAM)} }}
            }}
        }}"""
    return ["nginx", "-c", write("nginx.conf", config), "-p", str(HERE)]


def php(front, port):
    """PHP-FPM behind nginx or Apache, which becomes what is served by; over a UNIX socket or TCP."""
    fpm_port = free_port()
    listen = f"127.0.0.1:{fpm_port}" if front else f"{HERE}/php.sock"
    config = f"""
[global]
pid = {HERE}/php.pid
error_log = {HERE}/php-error.log
daemonize = no
[pool]
user = root
group = root
listen = {listen}
listen.backlog = 1024
pm = static
pm.max_children = 8
env[UPSTREAM_PORT] = {UPSTREAM}
"""
    program = sorted(pathlib.Path("/usr/sbin").glob("php-fpm*"))[-1]
    command = [program, "-n", "-R", "-F", "-y", write("php-fpm.conf", config)]
    if os.fork() == 0:
        # Ends with its parent, which becomes nginx.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        os.execv(program, command)
    if front:
        wait_for(fpm_port)
    while not front and not (HERE / "php.sock").exists():
        time.sleep(0.05)
    if front == "apache":
        # A handler and not ProxyPass: Apache names the script by its own document root.
        rules = f"""
            RewriteRule ^/(same|new|late|latenew)/([^/]+)$ {SOURCES}/tree.php
            <Directory {SOURCES}>
                Require all granted
                SetHandler "proxy:fcgi://{listen}"
            </Directory>"""
        return apache_by("event", port, ["proxy_fcgi"], rules)
    to = listen if front else f"unix:{listen}"
    config = f"""
        daemon off; user root; worker_processes 2; pid {HERE}/nginx.pid; error_log {HERE}/nginx.error;
        events {{ worker_connections 2048; }}
        http {{
            access_log off; client_body_temp_path {HERE}; proxy_temp_path {HERE}; fastcgi_temp_path {HERE};
            uwsgi_temp_path {HERE}; scgi_temp_path {HERE};
            server {{
                listen 127.0.0.1:{port} backlog=1024;
                location / {{
                    fastcgi_pass {to};
                    fastcgi_param SCRIPT_FILENAME {SOURCES}/tree.php;
                    fastcgi_param REQUEST_METHOD $request_method;
                    fastcgi_param REQUEST_URI $request_uri;
                }}
            }}
        }}"""
    return ["nginx", "-c", write("nginx.conf", config), "-p", str(HERE)]


def haproxy(_, port):
    config = f"""
global
    nbthread 2
defaults
    mode http
    timeout connect 10s
    timeout client 30s
    timeout server 30s
frontend front
    bind 127.0.0.1:{port} backlog 1024
    use_backend %[path,field(2,/)]
backend same
    http-reuse always
    http-request set-path /b/%[path,field(3,/)]/k0/d%[rand(6000)]
    server upstream 127.0.0.1:{UPSTREAM}
backend new
    http-reuse never
    http-request set-path /b/%[path,field(3,/)]/k0/d%[rand(6000)]
    server upstream 127.0.0.1:{UPSTREAM}
"""
    return ["haproxy", "-db", "-f", write("haproxy.cfg", config)]


def apache(kind, port):
    delays = write("delays", "d " + "|".join(map(str, DELAYS)) + "\n")
    rules = f"""
        RewriteMap delays rnd:{delays}
        RewriteRule ^/same/([^/]+)$ http://127.0.0.1:{UPSTREAM}/b/$1/k0/d${{delays:d}} [P]
        RewriteRule ^/new/([^/]+)$ http://127.0.0.1:{UPSTREAM}/b/$1/k0/d${{delays:d}} [P,E=proxy-nokeepalive:1]
        <Proxy http://127.0.0.1:{UPSTREAM}/>
            ProxySet enablereuse=on max=100
        </Proxy>"""
    return apache_by(kind, port, ["proxy_http"], rules)


def apache_h2c(_, port):
    """Passes every target on as it is, by HTTP/2 in the clear."""
    return apache_by("event", port, ["proxy_http2"], f"RewriteRule ^/(.*)$ h2c://127.0.0.1:{UPSTREAM}/$1 [P]")


def varnish(_, port):
    """Passes every target on as it is, some without looking them up."""
    config = f"""
vcl 4.1;
backend upstream {{ .host = "127.0.0.1"; .port = "{UPSTREAM}"; }}
sub vcl_recv {{ if (req.url ~ "^/pass/") {{ return (pass); }} }}
"""
    front = ["varnishd", "-F", "-a", f"127.0.0.1:{port}", "-f", write("front.vcl", config), "-n", str(HERE / "varnish")]
    return [*front, "-s", "default,16m", "-p", "thread_pools=1", "-p", "thread_pool_min=100"]


def apache_by(kind, port, more, rules):
    modules = [f"mpm_{kind}", "unixd", "authz_core", "proxy", *more, "rewrite"]
    loads = "\n".join(
        f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so"
        for name in modules
        if name != "unixd" or pathlib.Path("/usr/lib/apache2/modules/mod_unixd.so").exists()
    )
    # As many as there are clients: when they run out, event closes idle connections, and prefork's wait for each other.
    if kind == "prefork":
        limits = "ServerLimit 300\nMaxRequestWorkers 300\nStartServers 80\nMinSpareServers 20\nMaxSpareServers 300"
    elif kind == "event":
        # One process may get all of them.
        limits = "ThreadLimit 320\nThreadsPerChild 320\nServerLimit 2\nMaxRequestWorkers 640\nStartServers 2\nMinSpareThreads 64\nMaxSpareThreads 640"
    else:
        limits = "ThreadsPerChild 64\nMaxRequestWorkers 512\nStartServers 5\nMinSpareThreads 64\nMaxSpareThreads 512"
    config = f"""
{loads}
ServerRoot {HERE}
ServerName localhost
Listen 127.0.0.1:{port}
ListenBacklog 1024
PidFile {HERE}/apache.pid
ErrorLog {HERE}/apache.error
Mutex sem
User www-data
Group www-data
KeepAliveTimeout 30
MaxKeepAliveRequests 0
{limits}
RewriteEngine on
{rules}
"""
    return ["apache2", "-DFOREGROUND", "-f", write("apache.conf", config)]


def puma(_, port):
    os.environ["RACK_ENV"] = "production"
    return ["puma", "-t", "8:8", "-b", f"tcp://127.0.0.1:{port}", str(SOURCES / "tree.ru")]


KINDS = {
    "gunicorn": gunicorn,
    "nginx": nginx,
    "haproxy": haproxy,
    "php": php,
    "apache": apache,
    "apache_h2c": apache_h2c,
    "varnish": varnish,
    "puma": puma,
}


def wait_for(port):
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.05)


def say_when_it_listens(port):
    """By a process that is nobody's child of ours: the server reaps only its own."""
    if os.fork():
        os.wait()
        return
    if os.fork():
        os._exit(0)
    wait_for(port)
    print("PORT", port, flush=True)
    os._exit(0)


def main(kind):
    name, _, of = kind.partition("-")
    port = free_port()
    command = KINDS[name](of, port)
    say_when_it_listens(port)
    os.environ["PATH"] += ":/usr/sbin"
    os.execvp(command[0], command)


main(sys._xoptions["served"])
