import react from "@vitejs/plugin-react";

// `npm run dev` serves the page, and passes requests to the agent on to uvicorn.
export default { plugins: [react()], server: { proxy: { "/agent": "http://127.0.0.1:8000" } } };
