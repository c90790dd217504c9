"""Asks a server of the Model Context Protocol by the protocol's own client.

Arguments: where (a JSON object: "command" and "args", or "url" and "token"), how it connects ("auto" or "legacy"), and questions (a
JSON list of pairs: tool, arguments). Prints a JSON object a line: what was connected to, its tools, and an answer per question."""
import asyncio
import json
import sys
from contextlib import asynccontextmanager

import httpx2
import jsonschema
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

where, mode, questions = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])


def say(**what):
    print(json.dumps(what), flush=True)


@asynccontextmanager
async def connected():
    if "command" in where:
        server = StdioServerParameters(command=where["command"], args=where["args"])
        async with Client(server, mode=mode, cache=None, read_timeout_seconds=40) as client:
            yield client
    else:
        headers = {"Authorization": "Bearer " + where["token"]}
        async with httpx2.AsyncClient(headers=headers, timeout=40) as http:
            transport = streamable_http_client(where["url"], http_client=http)
            async with Client(transport, mode=mode, cache=None, read_timeout_seconds=40) as client:
                yield client


async def main():
    async with connected() as client:
        say(version=client.protocol_version, server=client.server_info.name, instructions=client.instructions)
        tools = (await client.list_tools()).tools
        for tool in tools:
            jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        say(tools=[tool.name for tool in tools], read_only=all(tool.annotations.read_only_hint for tool in tools))
        schemas = {tool.name: tool.input_schema for tool in tools}
        for tool, arguments in questions:
            valid = jsonschema.Draft202012Validator(schemas[tool]).is_valid(arguments)
            answer = await client.call_tool(tool, arguments)
            text = answer.content[0].text
            say(tool=tool, valid=valid, is_error=bool(answer.is_error), structured=answer.structured_content, text=text)


asyncio.run(main())
