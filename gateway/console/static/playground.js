// Playground: a conversation stored only in this window, with answers streamed through the normal request path.
(() => {
  const PATH = "/console/playground";
  const NEAR_PX = 160;
  const SETTINGS = ["csrf", "system", "temperature", "max_tokens"];
  const CUT = {
    credits_exhausted: ["Your credits are used up. The answer ends here.", "Buy credits, or choose a free lane."],
    budget_exceeded: ["A spending limit was reached. The answer ends here.", "Ask an admin to raise it, or choose a free lane."],
    payments_frozen: ["Payments are frozen. The answer ends here.", "Ask an instance admin for the reason."],
    ledger_unavailable: ["The ledger is unavailable. The answer ends here.", "Try again shortly."],
  };
  const form = document.getElementById("pg-form");
  const list = document.getElementById("pg-turns");
  const problem = document.getElementById("pg-problem");
  const send = document.getElementById("pg-send");
  const stop = document.getElementById("pg-stop");
  const dialog = document.getElementById("pg-code");
  const prompt = form.elements.prompt;
  const charsMax = Number(form.dataset.charsMax);
  const messagesMax = Number(form.dataset.turnsMax);
  const lanesOf = JSON.parse(form.dataset.lanes);
  const nothing = list.firstElementChild;

  // Each turn: its question, its element, and its answers in the order of the requests.
  let turns = [];
  let running = null;

  const copyOf = (id) => document.getElementById(id).content.firstElementChild.cloneNode(true);
  const slot = (root, name) => root.querySelector(`[data-slot="${name}"]`);
  const isNearEnd = () => innerHeight + scrollY >= document.documentElement.scrollHeight - NEAR_PX;
  const toEnd = () => scrollTo({ top: document.documentElement.scrollHeight });

  // ---- errors
  const trouble = ({ message, remedy = "", href = "", label = "Open page" }) => {
    const shown = copyOf("pg-trouble");
    slot(shown, "message").textContent = message;
    slot(shown, "remedy").textContent = remedy;
    if (href) {
      Object.assign(slot(shown, "link"), { href, textContent: label, hidden: false, target: "_blank" });
    }
    return shown;
  };
  // A backend's error in mid-answer is passed on unchanged: show its text, but only links to the console.
  const safeError = (error) => {
    const { message, remedy, href } = typeof error === "string" ? { message: error } : error;
    const text = (value, otherwise) => (typeof value === "string" && value ? value : otherwise);
    const path = text(href, "");
    return {
      message: text(message, "The backend stopped without giving a reason."),
      remedy: text(remedy, "Send the message again."),
      href: path.startsWith("/console/") ? path : "",
    };
  };
  const unmark = () => {
    problem.replaceChildren();
    for (const input of form.querySelectorAll("[aria-invalid]")) {
      input.removeAttribute("aria-invalid");
      input.removeAttribute("aria-describedby");
      input.closest(".field").querySelector(".mr-error")?.remove();
    }
  };
  const mark = (fields) => {
    for (const [name, sentence] of Object.entries(fields)) {
      const input = form.elements[name];
      if (!input?.closest(".field")) {
        problem.append(trouble({ message: sentence }));
        continue;
      }
      const wrong = copyOf("pg-wrong");
      wrong.id = `${input.id}-error`;
      slot(wrong, "sentence").textContent = sentence;
      input.setAttribute("aria-invalid", "true");
      input.setAttribute("aria-describedby", wrong.id);
      input.closest(".field").append(wrong);
      const details = input.closest("details");
      if (details) details.open = true;
    }
    form.querySelector("[aria-invalid]")?.focus();
  };
  const errorOf = async (response) => {
    if (response.status === 401) {
      return {
        message: "Your session has expired.",
        remedy: "Copy your text, sign in again in another window, then reload this page.",
        href: response.headers.get("hx-redirect") ?? "/console/login",
        label: "Sign in",
      };
    }
    try {
      return (await response.json()).error;
    } catch {
      return { message: `The gateway answered ${response.status}.`, remedy: "Send the message again." };
    }
  };

  // ---- sending
  const settings = () => {
    const fields = new URLSearchParams();
    for (const name of SETTINGS) fields.set(name, form.elements[name].value);
    return fields;
  };
  // Continue the newest answer of the same column; if there is none, that of another column.
  const answerOf = (turn, column) => {
    const said = turn.takes.filter((take) => take.text);
    return (said.findLast((take) => take.column === column) ?? said.at(-1))?.text;
  };
  // Return the messages before a turn: as many of the newest as may be sent.
  const before = (turn, column) => {
    const messages = [];
    let chars = 0;
    for (const earlier of turns.slice(0, turn ? turns.indexOf(turn) : turns.length).reverse()) {
      const answer = answerOf(earlier, column);
      if (!answer) continue;
      chars += earlier.question.length + answer.length;
      if (chars > charsMax || messages.length + 2 > messagesMax) {
        return { messages, isCut: true };
      }
      // If an answer was cut inside a character, half a character would be invalid JSON.
      messages.unshift(
        { role: "user", content: earlier.question.toWellFormed() },
        { role: "assistant", content: answer.toWellFormed() },
      );
    }
    return { messages, isCut: false };
  };
  const post = (path, fields, signal) =>
    fetch(`${PATH}/${path}`, {
      method: "POST",
      headers: { Accept: "text/event-stream, application/json", "HX-Request": "true" },
      body: fields,
      signal,
    });

  // ---- one answer
  const begin = (turn, column, model, lane) => {
    const node = copyOf("pg-answer");
    slot(node, "model").textContent = model;
    node.setAttribute("aria-busy", "true");
    node.setAttribute("aria-label", `Answer of ${model}`);
    turn.node.querySelector(".pg-answers").append(node);
    const take = { turn, column, model, lane, node, text: "", thoughts: "", isDrawn: true, isRefused: false };
    node.querySelector("[data-again]").addEventListener("click", () => again(take));
    turn.takes.push(take);
    return take;
  };
  const say = (take, state) => (slot(take.node, "state").textContent = state);
  // Once per frame, however many tokens arrived: text, never markup.
  const draw = (take) => {
    if (!take.isDrawn) return;
    take.isDrawn = false;
    requestAnimationFrame(() => {
      const follows = isNearEnd();
      take.isDrawn = true;
      write(slot(take.node, "text"), take.text);
      if (take.thoughts) {
        take.node.querySelector(".pg-thoughts").hidden = false;
        write(slot(take.node, "thoughts"), take.thoughts);
      }
      if (follows) toEnd();
    });
  };
  const write = (node, text) => {
    if (!node.firstChild) node.append("");
    const had = node.firstChild.data.length;
    if (text.length > had) node.firstChild.appendData(text.slice(had));
  };
  const parsed = (data) => {
    try {
      return Object(JSON.parse(data));
    } catch {
      throw { message: "The backend sent an invalid answer.", remedy: "Send the message again, or choose another model." };
    }
  };
  const receive = (take, data) => {
    if (data === "[DONE]") return;
    const said = parsed(data);
    if (said.error) throw safeError(said.error);
    const choice = said.choices?.[0];
    const delta = choice?.delta ?? choice?.message;
    take.text += delta?.content ?? delta?.refusal ?? "";
    take.thoughts += delta?.reasoning_content ?? delta?.reasoning ?? "";
    if (choice?.finish_reason === "length") take.end = "token limit reached";
    const ended = CUT[said.millrace?.ended];
    if (ended) slot(take.node, "problem").replaceChildren(trouble({ message: ended[0], remedy: ended[1] }));
    draw(take);
  };
  const listen = async (take, response) => {
    if (!response.headers.get("content-type")?.startsWith("text/event-stream")) {
      receive(take, await response.text());
      return;
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let held = "";
    try {
      for (;;) {
        const { value, done } = await reader.read();
        const events = (held + (value ?? "")).split(/\r?\n\r?\n/);
        held = done ? "" : events.pop();
        for (const event of events) {
          const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
          if (lines.length) receive(take, lines.map((line) => line.slice(5).trimStart()).join("\n"));
        }
        if (done) return;
      }
    } finally {
      reader.cancel().catch(() => {}); // stop generation of an answer that is no longer read; it costs money
    }
  };
  const showHead = (take, response) => {
    const lane = slot(take.node, "lane");
    lane.textContent = response.headers.get("x-millrace-lane") ?? "";
    lane.hidden = !lane.textContent;
    slot(take.node, "facts").textContent = response.headers.get("x-millrace-reason") ?? "";
    slot(take.node, "facts").className = "mr-quiet";
    const model = response.headers.get("x-millrace-model");
    if (model) slot(take.node, "model").textContent = `${take.model}, answered by ${model}`;
    say(take, "answering");
  };
  const showFacts = async (take) => {
    if (!take.id) return;
    const response = await fetch(`${PATH}/answers/${take.id}`, { headers: { "HX-Request": "true" } }).catch(() => null);
    if (!response?.ok) return;
    const follows = isNearEnd();
    slot(take.node, "facts").innerHTML = await response.text(); // rendered and escaped by the gateway
    if (follows) toEnd();
  };
  const ask = async (take, signal) => {
    const { messages, isCut } = before(take.turn, take.column);
    const fields = settings();
    fields.set("model", take.model);
    fields.set("lane", take.lane);
    fields.set("prompt", take.turn.question);
    fields.set("history", JSON.stringify(messages));
    try {
      const response = await post("ask", fields, signal);
      take.id = response.headers.get("x-request-id");
      if (!response.ok) {
        const error = await errorOf(response);
        take.isRefused = true;
        take.fields = error.fields;
        throw error;
      }
      showHead(take, response);
      if (prompt.value.trim() === take.turn.question) prompt.value = "";
      await listen(take, response);
      say(take, [take.end, isCut && "oldest messages omitted"].filter(Boolean).join(", "));
    } catch (error) {
      const follows = isNearEnd();
      if (signal.aborted) {
        say(take, "stopped");
      } else {
        const lost = { message: "The connection to the gateway was lost.", remedy: "Send the message again." };
        slot(take.node, "problem").replaceChildren(trouble(error instanceof Error ? lost : error));
        say(take, take.isRefused ? "refused" : "Interrupted");
      }
      if (follows) toEnd();
    }
    draw(take);
    take.node.setAttribute("aria-busy", "false");
    if (!take.fields) showFacts(take); // a moment later, once the ledger has it; do not wait for that
  };

  // ---- turns
  const showRunning = (isRunning) => {
    const had = document.activeElement;
    send.hidden = isRunning;
    stop.hidden = !isRunning;
    if (isRunning && had === send) stop.focus();
    if (!isRunning && had === stop) prompt.focus();
    for (const button of list.querySelectorAll("[data-again]")) button.disabled = isRunning;
  };
  const run = async (takes) => {
    running = new AbortController();
    showRunning(true);
    toEnd();
    await Promise.all(takes.map((take) => ask(take, running.signal)));
    running = null;
    for (const take of takes) {
      const lanes = slot(take.node, "lanes");
      const used = slot(take.node, "lane").textContent || take.lane;
      const others = (lanesOf[take.model] ?? []).filter((lane) => lane !== used);
      lanes.value = [...lanes.options].map((option) => option.value).find((lane) => others.includes(lane)) ?? "";
      take.node.querySelector(".pg-again").hidden = false;
    }
    showRunning(false);
  };
  const drop = (turn) => {
    turns = turns.filter((other) => other !== turn);
    turn.node.remove();
    if (!turns.length) list.append(nothing);
  };
  const discard = (take) => {
    take.turn.takes = take.turn.takes.filter((other) => other !== take);
    take.node.remove();
    if (!take.turn.takes.length) drop(take.turn);
  };
  // Whether a request may be sent now. A browser would leave out input that is not a number.
  const mayAsk = () => {
    if (running) return false;
    unmark();
    const wrong = [...form.querySelectorAll("input[type=number]")].filter((input) => input.validity.badInput);
    mark(Object.fromEntries(wrong.map((input) => [input.name, "Enter a number."])));
    return !wrong.length;
  };
  // Send, and remove answers whose request the form's fields prevented; the fields show the reason.
  const runChecked = async (takes) => {
    await run(takes);
    const wrong = takes.filter((take) => take.fields);
    wrong.forEach(discard);
    if (wrong.length) mark(wrong[0].fields);
  };
  const hasFailed = (turn) => turn.takes.every((take) => take.isRefused);
  const submit = async () => {
    if (!mayAsk()) return;
    const question = prompt.value.trim();
    if (!question) return mark({ prompt: "Enter a message." });
    for (const failed of turns.filter(hasFailed)) drop(failed);
    for (const row of list.querySelectorAll(".pg-again")) row.remove();
    nothing.remove();
    const turn = { question, node: copyOf("pg-turn"), takes: [] };
    slot(turn.node, "question").textContent = question;
    turns.push(turn);
    list.append(turn.node);
    const lane = form.elements.lane.value;
    const takes = [begin(turn, "a", form.elements.model.value, lane)];
    const other = form.elements.compare.value;
    if (other) takes.push(begin(turn, "b", other, lane));
    await runChecked(takes);
    if (!turn.takes.length) prompt.value ||= question;
  };
  const again = (take) => {
    if (mayAsk()) runChecked([begin(take.turn, take.column, take.model, slot(take.node, "lanes").value)]);
  };

  // ---- buttons and keys
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  stop.addEventListener("click", () => running?.abort());
  document.getElementById("pg-new").addEventListener("click", () => {
    running?.abort();
    for (const turn of [...turns]) drop(turn);
    unmark();
    prompt.focus();
  });
  document.getElementById("pg-show-code").addEventListener("click", async () => {
    unmark();
    const fields = settings();
    for (const name of ["model", "lane", "prompt"]) fields.set(name, form.elements[name].value);
    fields.set("history", JSON.stringify(before(null, "a").messages));
    const response = await post("code", fields).catch(() => null);
    if (response?.ok) {
      document.getElementById("pg-code-shown").innerHTML = await response.text(); // rendered and escaped by the gateway
      dialog.showModal();
      return;
    }
    const error = response ? await errorOf(response) : { message: "The gateway did not answer.", remedy: "Try again." };
    if (error.fields) mark(error.fields);
    else problem.replaceChildren(trouble(error));
  });
})();
