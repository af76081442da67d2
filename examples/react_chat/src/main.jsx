import { HttpAgent } from "@ag-ui/client";
import { useEffect, useState } from "react";
import { createRoot } from "react-dom/client";

const THREAD = "chat-1"; // one conversation for each user; the server keeps those of users apart

function Chat({ token }) {
  const headers = { Authorization: `Bearer ${token}` };
  const [agent] = useState(() => new HttpAgent({ url: "/agent/agui", threadId: THREAD, headers }));
  const [messages, setMessages] = useState([]);
  const [questions, setQuestions] = useState([]);
  const [isRunning, setIsRunning] = useState(false);
  const [error, setError] = useState("");

  async function run(input) {
    setIsRunning(true);
    setError("");
    setQuestions([]);
    try {
      // A reload of the page does not stop the run.
      await agent.runAgent({ ...input, forwardedProps: { onDisconnect: "continue" } });
    } catch (failure) {
      setError(failure.message);
    }
    setQuestions(agent.pendingInterrupts);
    setIsRunning(false);
  }

  useEffect(() => {
    const { unsubscribe } = agent.subscribe({
      onMessagesChanged: ({ messages }) => setMessages([...messages]),
      onRunErrorEvent: ({ event }) => setError(event.message),
    });
    run(); // without a new message: the server sends the history, the rest of a run, and questions
    return unsubscribe;
  }, [agent]);

  function send(form) {
    agent.addMessage({ id: crypto.randomUUID(), role: "user", content: form.get("text") });
    run();
  }

  function decide(question, approved) {
    run({ resume: [{ interruptId: question.id, status: "resolved", payload: { approved } }] });
  }

  const stop = () => fetch(`/agent/sessions/${THREAD}/abort`, { method: "POST", headers });

  function logOut() {
    localStorage.removeItem("token");
    location.reload();
  }

  return (
    <main>
      {messages.map((message) => <Message key={message.id} {...message} />)}
      {questions.map((question) => (
        <p key={question.id} role="alert">
          {question.message}
          <button onClick={() => decide(question, true)}>Approve</button>
          <button onClick={() => decide(question, false)}>Reject</button>
        </p>
      ))}
      {error && <p role="status">{error}</p>}
      <form action={send}>
        <input name="text" aria-label="Message" required autoFocus />
        <button disabled={isRunning}>Send</button>
        <button type="button" disabled={!isRunning} onClick={stop}>Stop</button>
        <button type="button" onClick={logOut}>Log out</button>
      </form>
    </main>
  );
}

function Message({ role, content, toolCalls = [] }) {
  if (role === "tool") return <pre>{content}</pre>;
  return (
    <article className={role}>
      {content}
      {toolCalls.map(({ id, function: { name, arguments: given } }) => (
        <code key={id}>{name} {given}</code>
      ))}
    </article>
  );
}

function App() {
  const [token, setToken] = useState(() => localStorage.getItem("token"));
  function logIn(form) {
    localStorage.setItem("token", form.get("token"));
    setToken(form.get("token"));
  }
  if (token) return <Chat token={token} />;
  return (
    <form action={logIn}>
      <input name="token" type="password" aria-label="Token" required />
      <button>Log in</button>
    </form>
  );
}

createRoot(document.getElementById("root")).render(<App />);
