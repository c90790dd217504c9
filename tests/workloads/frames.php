<?php
// Functions whose stacks are known: each route burns CPU, or sleeps, below a chain of functions.

const SECONDS = 0.2;

function used(): float
{
    $usage = getrusage();
    return $usage['ru_utime.tv_sec'] + $usage['ru_stime.tv_sec']
        + ($usage['ru_utime.tv_usec'] + $usage['ru_stime.tv_usec']) / 1e6;
}

function c(float $seconds): int
{
    $until = used() + $seconds;
    $total = 0;
    while (used() < $until) { // line: c asks
        for ($i = 0; $i < 20000; $i++) {
            $total += $i % 7; // line: c adds
        }
    }
    return $total;
}

function b(float $seconds): int
{
    return c($seconds); // line: b calls
}

function a(float $seconds): int
{
    return b($seconds); // line: a calls
}

class Key
{
    public function __construct(private float $seconds)
    {
    }

    public function of($one, $other): int
    {
        c($this->seconds); // line: Key::of calls
        return 0;
    }
}

function by_key(float $seconds): void
{
    $all = [1, 2];
    usort($all, [new Key($seconds), 'of']); // line: by_key sorts
}

function producer(float $seconds)
{
    c($seconds); // line: producer calls
    yield 1;
}

function consumer(float $seconds): void
{
    foreach (producer($seconds) as $one) { // line: consumer asks
    }
}

function closed(float $seconds): void
{
    $inner = function () use ($seconds) {
        c($seconds); // line: {closure} calls
    };
    $inner(); // line: closed calls
}

// Three quarters of it below one function, a quarter below another.
function most(float $seconds): void
{
    c($seconds * 0.75);
}

function least(float $seconds): void
{
    c($seconds * 0.25);
}

function both(float $seconds): void
{
    most($seconds);
    least($seconds);
}

function sleeper(float $seconds): void
{
    usleep((int) ($seconds * 1e5)); // line: sleeper sleeps
}

function waiter(float $seconds): void
{
    sleeper($seconds); // line: waiter calls
}

const ROUTES = [
    '/burn' => 'a',
    '/callback' => 'by_key',
    '/generator' => 'consumer',
    '/closure' => 'closed',
    '/shares' => 'both',
    '/sleep' => 'waiter',
];

$route = ROUTES[strtok($_SERVER['REQUEST_URI'], '?')] ?? null;
if ($route !== null) {
    $route(SECONDS); // line: {main} calls
}
