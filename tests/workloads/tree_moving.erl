#!/usr/bin/env escript
%%! +S 4:4
%% A server of Erlang's processes, which its virtual machine moves among its threads: GET /MODE/ID calls /b/ID/k0/dT of the
%% upstream after a nap of up to 5 ms.
-mode(compile).

main(_) ->
    Upstream = list_to_integer(os:getenv("UPSTREAM_PORT")),
    Options = [binary, {active, false}, {nodelay, true}],
    {ok, Listener} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {backlog, 1024} | Options]),
    {ok, Port} = inet:port(Listener),
    io:format("PORT ~b~n", [Port]),
    accept(Listener, Upstream, Options).

accept(Listener, Upstream, Options) ->
    {ok, Client} = gen_tcp:accept(Listener),
    Server = spawn(fun() ->
        receive owned -> ok end,
        {ok, Connection} = gen_tcp:connect({127, 0, 0, 1}, Upstream, Options),
        serve(Client, Connection)
    end),
    ok = gen_tcp:controlling_process(Client, Server),
    Server ! owned,
    accept(Listener, Upstream, Options).

serve(Client, Connection) ->
    case gen_tcp:recv(Client, 0) of
        {ok, Head} ->
            [_, Path | _] = binary:split(Head, <<" ">>, [global]),
            [_, _, Ident] = binary:split(Path, <<"/">>, [global]),
            timer:sleep(rand:uniform(6) - 1),
            Time = integer_to_binary(499 + rand:uniform(6000)),
            Call = ["GET /b/", Ident, "/k0/d", Time, " HTTP/1.1\r\nHost: b\r\n\r\n"],
            ok = gen_tcp:send(Connection, Call),
            {ok, _} = gen_tcp:recv(Connection, 0),
            ok = gen_tcp:send(Client, <<"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n">>),
            serve(Client, Connection);
        {error, closed} ->
            gen_tcp:close(Connection)
    end.
