<?php
// An application for PHP-FPM: GET /MODE/ID calls /b/ID/kN/dT of the upstream.

[, $mode, $id] = explode('/', $_SERVER['REQUEST_URI']);
usleep(random_int(0, 4000));
$late = str_starts_with($mode, 'late');
$answer = function () {
    header('Content-Length: 3');
    echo "ok\n";
};
if ($late) {
    // What follows is done after the reply.
    $answer();
    fastcgi_finish_request();
    usleep(random_int(0, 2000));
}
$kept = $mode === 'same' || $mode === 'late';
for ($number = 0; $number < 2; $number++) {
    // Kept by the process from one request to the next, or not.
    $open = $kept ? 'pfsockopen' : 'fsockopen';
    $upstream = $open('127.0.0.1', (int) getenv('UPSTREAM_PORT'));
    stream_set_timeout($upstream, 30);
    $delay = random_int(500, 6500);
    fwrite($upstream, "GET /b/$id/k$number/d$delay HTTP/1.1\r\nHost: upstream\r\n\r\n");
    $length = 0;
    while (($line = rtrim(fgets($upstream))) !== '') {
        if (stripos($line, 'content-length:') === 0) {
            $length = (int) substr($line, 15);
        }
    }
    if ($length > 0) {
        stream_get_contents($upstream, $length);
    }
    if (!$kept) {
        fclose($upstream);
    }
}
if (!$late) {
    $answer();
}
