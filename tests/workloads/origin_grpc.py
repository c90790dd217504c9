"""An upstream of gRPC: a call of /b/ID.kN.d1500 waits 1500 microseconds before it is answered. Prints PORT."""

import time
from concurrent import futures

import grpc


class Origin(grpc.GenericRpcHandler):
    def service(self, details):
        delay = int(details.method.rsplit(".d", 1)[1]) / 1e6

        def answer(request, _):
            time.sleep(delay)
            return request

        return grpc.unary_unary_rpc_method_handler(answer)


def main():
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=64))
    server.add_generic_rpc_handlers((Origin(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print("PORT", port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
