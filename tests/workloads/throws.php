<?php
// Scripts that throw: the path says what, and what becomes of it. What nothing catches is answered with 500.

namespace Shop;

class NoStock extends \RuntimeException {}
class AnExceptionWithANameThatIsLongerThanTheSixtyThreeBytesThatAreReadAtOnce extends \Exception {}

function fails(string $route): void
{
    switch ($route) {
        case 'stock':
            throw new NoStock('a secret');
        case 'runtime':
            throw new \RuntimeException('a secret');
        case 'long':
            throw new AnExceptionWithANameThatIsLongerThanTheSixtyThreeBytesThatAreReadAtOnce();
        case 'division':
            echo intdiv(1, 0);
            break;
        case 'call':
            echo nothing();
            break;
        case 'finally':
            try {
                throw new NoStock('a secret');
            } finally {
                echo '';
            }
        case 'handled':
            try {
                throw new NoStock('a secret');
            } catch (\Exception) {
            }
            break;
        case 'two':
            try {
                throw new NoStock('a secret');
            } catch (\Exception) {
            }
            throw new \LogicException('a secret');
        case 'status':
            http_response_code(500);
            break;
    }
}

[, $route] = explode('/', $_SERVER['REQUEST_URI']);
fails($route);
echo "ok\n";
