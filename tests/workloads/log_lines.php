<?php
// Logs to standard error and to a file; every line has the request's path.
$path = $_SERVER['REQUEST_URI'];
error_log("begins path=$path");
file_put_contents(getenv('LOG_FILE'), "file path=$path\n", FILE_APPEND);
if (str_starts_with($path, '/fail/')) {
    http_response_code(500);
}
echo "ok\n";
