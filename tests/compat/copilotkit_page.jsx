// A chat of CopilotKit without its own look: messages, and a row of buttons for each call that waits.
import React from "react";
import { createRoot } from "react-dom/client";
import { CopilotKitProvider, useAgent, useCopilotKit, useInterrupt } from "@copilotkit/react-core/v2";

const threadId = new URLSearchParams(location.search).get("thread");
const ANSWERS = {
  approve: { approved: true },
  edit: { approved: true, editedArgs: { key: "z" } },
  reject: { approved: false, reason: "no" },
};

function Chat() {
  const { agent } = useAgent({ agentId: "default" });
  const { copilotkit } = useCopilotKit();
  const [failed, setFailed] = React.useState("");
  agent.threadId = threadId;
  React.useEffect(() => {
    const { unsubscribe } = copilotkit.subscribe({ onError: ({ error }) => setFailed(error.message) });
    return unsubscribe;
  }, [copilotkit]);
  const asked = useInterrupt({
    agentId: "default",
    renderInChat: false,
    render: ({ interrupts, resolve }) => (
      <div>
        {interrupts.map((each) => (
          <p key={each.id} className="asked">
            {Object.entries(ANSWERS).map(([name, payload]) => (
              <button key={name} className={name} onClick={() => resolve(payload, each.id)}>
                {name}
              </button>
            ))}
          </p>
        ))}
      </div>
    ),
  });
  window.send = (text) => {
    agent.addMessage({ id: crypto.randomUUID(), role: "user", content: text });
    return copilotkit.runAgent({ agent });
  };
  window.connect = () => copilotkit.connectAgent({ agent });
  window.isConnected = copilotkit.runtimeConnectionStatus === "connected";
  window.messages = agent.messages;
  window.isRunning = agent.isRunning;
  window.failure = failed;
  return <div>{asked}</div>;
}

createRoot(document.getElementById("root")).render(
  <CopilotKitProvider runtimeUrl="/api/copilotkit">
    <Chat />
  </CopilotKitProvider>,
);
