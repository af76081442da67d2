// CopilotKit's runtime in front of an AG-UI agent, and the page. Its argument is the agent's address.
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { HttpAgent } from "@ag-ui/client";
import { CopilotRuntime } from "@copilotkit/runtime/v2";
import { createCopilotNodeListener } from "@copilotkit/runtime/v2/node";

// When a stream breaks, @ag-ui/client 0.0.59 throws in a callback of `reader.cancel()` (src/run/http-request.ts, the
// teardown of the stream), which would end this process.
process.on("unhandledRejection", (error) => console.error(error));
const runtime = new CopilotRuntime({ agents: { default: new HttpAgent({ url: process.argv[2] }) } });
const copilot = createCopilotNodeListener({ runtime, basePath: "/api/copilotkit" });
const PAGE = '<!doctype html><div id="root"></div><script type="module" src="/page.js"></script>';
const server = createServer((request, response) => {
  if (request.url.startsWith("/api/")) return copilot(request, response);
  const isScript = request.url === "/page.js";
  response.setHeader("content-type", isScript ? "text/javascript" : "text/html");
  response.end(isScript ? readFileSync("page.js") : PAGE);
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
