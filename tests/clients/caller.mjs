// A caller written with the official TypeScript SDKs: `node caller.mjs auto` or `node caller.mjs legacy`.
//
// `serve` is what a user would write, the same for both eras. `auto` is @modelcontextprotocol/client, which speaks
// 2026-07-28 to whom it can; `legacy` is @modelcontextprotocol/sdk, which knows the earlier revisions alone.
// It reads OUBLIETTE_URL, OUBLIETTE_TOKEN and PROMPT, and prints one JSON object: the revision, what the caller was
// asked, the types of the events, the text of the turn, and the errors that the SDK told of.

const CLIENT = { name: "typescript-caller", version: "1.0" };
const CONTEXT = { caller_id: "myapp", caller_tools: [{ name: "add", inputSchema: { type: "object" } }] };
// In 2026-07-28 events come on the response to the request that asks for them; before that this means nothing.
const LOGGED = { "io.modelcontextprotocol/logLevel": "info" };
// The SDKs end a request after 60 s, whatever comes on its stream, unless progress counts: a turn may take longer, and
// the daemon sends progress every 10 s to a request with a progress token, which `onprogress` makes the SDK send.
const PATIENT = { onprogress: () => {}, resetTimeoutOnProgress: true };

async function serve(caller) {
  const asked = [];
  const events = [];
  const ended = new Promise((resolve) => {
    caller.onEvent(async (event) => {
      events.push(event.type);
      if (event.type === "turn_completed") resolve();
      if (event.type === "caller_tool_request") await answer(caller, event, asked);
    });
  });
  const started = { message: process.env.PROMPT, context: CONTEXT, wait: true };
  const turn = await caller.call({ name: "session_message", arguments: started, _meta: LOGGED }, PATIENT);
  // In the earlier revisions events come on another connection than the answer, and in their own time.
  await ended;
  return { asked, events, text: turn.structuredContent.text };
}

async function answer(caller, { session_id, request_id, tool, arguments: numbers }, asked) {
  asked.push([tool, numbers]);
  const result = { sum: numbers.a + numbers.b };
  await caller.call({ name: "caller_tool_response", arguments: { session_id, request_id, result } });
}

// The SDKs, each behind `call`, `onEvent`, `onError`, `close` and the `revision`.

const url = new URL("/mcp", process.env.OUBLIETTE_URL);
const options = { requestInit: { headers: { Authorization: `Bearer ${process.env.OUBLIETTE_TOKEN}` } } };

async function auto() {
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const client = new Client(CLIENT, { versionNegotiation: { mode: "auto" } });
  await client.connect(new StreamableHTTPClientTransport(url, options));
  return {
    revision: client.getNegotiatedProtocolVersion(),
    call: (params, patience) => client.callTool(params, patience),
    onEvent: (take) => client.setNotificationHandler("notifications/message", ({ params }) => take(params.data)),
    onError: (take) => (client.onerror = take),
    close: () => client.close(),
  };
}

async function legacy() {
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const { LoggingMessageNotificationSchema } = await import("@modelcontextprotocol/sdk/types.js");
  const client = new Client(CLIENT);
  const transport = new StreamableHTTPClientTransport(url, options);
  await client.connect(transport);
  return {
    revision: transport.protocolVersion,
    call: (params, patience) => client.callTool(params, undefined, patience),
    onEvent: (take) => client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => take(params.data)),
    onError: (take) => (client.onerror = take),
    close: () => client.close(),
  };
}

const caller = await { auto, legacy }[process.argv[2]]();
const errors = [];
caller.onError((error) => errors.push(String(error)));
const served = await serve(caller);
// Told before `close`, which breaks the GET stream of the earlier revisions off.
console.log(JSON.stringify({ revision: caller.revision, ...served, errors }));
await caller.close();
