<?php
// One query from three functions, each on a connection of its own: PORT PORT PORT SECONDS. Prints how often each sent it.

const QUERY = "*2\r\n\$3\r\nGET\r\n\$1\r\nk\r\n";
$sockets = array_map(fn ($port) => stream_socket_client("tcp://127.0.0.1:$port"), array_slice($argv, 1, 3));

function first() {
    global $sockets;
    fwrite($sockets[0], QUERY); // line: first
    return fread($sockets[0], 4096);
}

function second() {
    global $sockets;
    fwrite($sockets[1], QUERY); // line: second
    return fread($sockets[1], 4096);
}

class Third {
    function third() {
        global $sockets;
        fwrite($sockets[2], QUERY); // line: third
        return fread($sockets[2], 4096);
    }
}

$counts = [0, 0, 0];
$end = microtime(true) + (float)$argv[4];
while (microtime(true) < $end) {
    first();
    $counts[0]++;
    for ($i = 0; $i < 2; $i++) {
        second();
        $counts[1]++;
    }
    (new Third())->third();
    $counts[2]++;
    usleep(10000);
}
echo "COUNTS ", implode(" ", $counts), "\n";
