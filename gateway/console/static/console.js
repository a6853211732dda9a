// What every page does: menu, theme, dialogs, copying, times, and the state of its live stream.
(() => {
  const AGAIN_MS = 30000;
  const all = (selector, root = document) => root.querySelectorAll(selector);

  // ---- menu and theme
  const menu = document.getElementById("menu-button");
  const sidebar = document.getElementById("sidebar");
  const showMenu = (isOpen) => {
    menu.setAttribute("aria-expanded", String(isOpen));
    sidebar.classList.toggle("is-open", isOpen);
    if (isOpen) sidebar.querySelector("a").focus();
  };
  menu?.addEventListener("click", () => showMenu(menu.getAttribute("aria-expanded") !== "true"));
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && sidebar?.classList.contains("is-open")) {
      showMenu(false);
      menu.focus();
    }
  });
  const showTheme = () => {
    for (const button of all("[data-theme]")) {
      button.setAttribute("aria-pressed", String(button.dataset.theme === window.mrTheme.chosen()));
    }
  };
  document.addEventListener("mr:theme", showTheme);
  showTheme();

  // ---- clicks
  const say = (button, isCopied) => {
    button.classList.toggle("is-done", isCopied);
    const label = button.dataset.label ?? (button.dataset.label = button.getAttribute("aria-label") ?? "Copy");
    button.setAttribute("aria-label", isCopied ? "Copied" : label);
  };
  const copy = async (button) => {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch {
      // The clipboard needs https: without it, select the text for Ctrl-C.
      const text = button.parentElement.querySelector("code");
      if (text) getSelection().selectAllChildren(text);
      return;
    }
    say(button, true);
    setTimeout(() => say(button, false), 1600);
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button, a");
    if (!button) {
      if (event.target.matches("dialog.mr-dialog[open]")) event.target.close(); // a click outside the dialog's content
      if (sidebar?.classList.contains("is-open") && !sidebar.contains(event.target)) showMenu(false);
      return;
    }
    if (button.matches(".mr-skip")) {
      event.preventDefault(); // keep the fragment out of the address; later pages would scroll to it
      document.getElementById("main").focus();
    }
    if (button.dataset.theme) window.mrTheme.choose(button.dataset.theme);
    if (button.dataset.opens) document.getElementById(button.dataset.opens)?.showModal();
    if ("closes" in button.dataset) button.closest("dialog")?.close();
    if (button.dataset.copy !== undefined) copy(button);
  });
  // A form that was rejected is shown again where it was.
  addEventListener("DOMContentLoaded", () => {
    all("dialog.mr-dialog").forEach((dialog) => {
      if (dialog.querySelector("[aria-invalid], .mr-error")) dialog.showModal();
    });
    document.querySelector(".mr-main [aria-invalid]")?.focus();
    // In a row of tabs wider than a phone, scroll to the current one.
    document.querySelector(".mr-subnav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  // ---- input survives the end of the session: it is restored after the sign-in
  const TYPED = "mr-typed";
  const SECRET = "input[type=password], input[type=hidden], input[type=file], input[type=submit]";
  const here = () => location.pathname + location.search;
  const typed = () =>
    [...all("form")].flatMap((form, at) =>
      [...form.elements]
        .filter((field) => field.name && !field.matches(SECRET))
        .map((field) => [at, field.name, field.value, field.checked ?? null]));
  const isSignIn = document.querySelector(".mr-ways") !== null;
  const keepTyped = () => {
    if (isSignIn) return;
    try {
      sessionStorage.setItem(TYPED, JSON.stringify({ page: here(), fields: typed() }));
    } catch {
      // Storage can be forbidden: then the input is lost.
    }
  };
  const signInAgain = () => {
    keepTyped();
    location.reload();
  };
  addEventListener("DOMContentLoaded", () => {
    let kept = null;
    try {
      kept = JSON.parse(sessionStorage.getItem(TYPED) ?? "null");
      if (isSignIn) {
        if (kept) sessionStorage.setItem(TYPED, JSON.stringify({ ...kept, isAway: true }));
        return;
      }
      sessionStorage.removeItem(TYPED);
    } catch {
      return;
    }
    if (!kept?.isAway || kept.page !== here()) return;
    const forms = [...all("form")];
    let back = null;
    for (const [at, name, value, isChecked] of kept.fields) {
      const field = [...(forms[at]?.elements ?? [])].find(
        (one) => one.name === name && (isChecked === null || !one.matches("[type=checkbox], [type=radio]") || one.value === value));
      if (!field) continue;
      const before = [field.value, field.checked];
      if (field.matches("[type=checkbox], [type=radio]")) field.checked = isChecked;
      else field.value = value;
      if (before[0] !== field.value || before[1] !== field.checked) back ??= field;
    }
    if (!back) return;
    back.closest("dialog.mr-dialog")?.showModal();
    const said = document.createElement("p");
    said.className = "mr-quiet";
    said.setAttribute("role", "status");
    said.textContent = "Your session expired. Your input was restored; nothing was sent.";
    back.form.prepend(said);
  });

  // ---- confirmation before submitting: data-confirm may name fields, as in "Give {amount} to {to}?"
  const wording = (form) =>
    form.dataset.confirm.replace(/\{(\w+)\}/g, (_, name) => {
      const field = form.elements[name];
      return (field?.selectedOptions?.[0]?.textContent ?? field?.value ?? "").trim();
    });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.dataset.confirm || form.dataset.isConfirmed) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const dialog = document.getElementById("confirm");
    dialog.querySelector("p").textContent = wording(form);
    const button = dialog.querySelector("[data-confirms]");
    button.textContent = form.querySelector("button:not([type=button])").textContent.trim();
    button.onclick = () => {
      dialog.close();
      form.dataset.isConfirmed = "yes";
      form.requestSubmit();
      delete form.dataset.isConfirmed;
    };
    dialog.showModal();
  });
  // Prevent submitting a form twice.
  document.addEventListener("submit", (event) => {
    if (event.target.method === "post") keepTyped();
    if (event.target.hasAttribute("hx-post") || event.target.method !== "post") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
    setTimeout(() => delete event.target.dataset.sent, AGAIN_MS); // some forms download a file, and the page stays
  });
  addEventListener("pageshow", () => all("form[data-sent]").forEach((form) => delete form.dataset.sent));

  // ---- times
  const steps = [
    [60, 1, "s"],
    [3600, 60, "min"],
    [86400, 3600, "h"],
    [Infinity, 86400, "d"],
  ];
  const inWords = (moment) => {
    const apart = (Date.now() - moment) / 1000;
    const [, unit, name] = steps.find(([below]) => Math.abs(apart) < below);
    const number = Math.floor(Math.abs(apart) / unit);
    if (unit === 1 && number < 3) return "now";
    return apart < 0 ? `in ${number} ${name}` : `${number} ${name} ago`;
  };
  const showTimes = () => {
    for (const time of all("time.mr-when")) {
      const moment = new Date(time.dateTime);
      const text = inWords(moment);
      if (time.textContent !== text) time.textContent = text;
      const exact = `${moment.toLocaleString()} (${time.dateTime})`;
      if (time.title !== exact) time.title = exact;
    }
  };
  showTimes();
  setInterval(showTimes, 5000);
  document.addEventListener("htmx:after:swap", showTimes);

  // ---- news: shown once in this browser, however often and on however many pages it arrives
  const SAID = "mr-said";
  const SAID_MAX = 100;
  const sayNews = () => {
    for (const news of all("#news [data-news]")) {
      let said = [];
      try {
        said = JSON.parse(localStorage.getItem(SAID) ?? "[]");
        if (said.includes(news.dataset.news)) continue;
        localStorage.setItem(SAID, JSON.stringify([...said, news.dataset.news].slice(-SAID_MAX)));
      } catch {
        // Storage can be forbidden: then show it once per page.
        if (news.dataset.said) continue;
        news.dataset.said = "yes";
      }
      document.getElementById("toaster").append(news.content.cloneNode(true));
    }
  };
  document.addEventListener("htmx:after:swap", sayNews);

  // ---- requests of htmx
  document.addEventListener("htmx:config:request", (event) => {
    const csrf = document.querySelector('meta[name="csrf"]');
    const { request } = event.detail.ctx;
    if (csrf && request.method !== "GET") request.headers["X-CSRF"] = csrf.content;
  });

  // ---- the live stream
  const isLive = (element) => element?.classList?.contains("mr-live");
  const mark = (state) => {
    document.body.dataset.live = state;
    if (state === "on") lastAt = Date.now();
    const at = new Date(lastAt).toLocaleTimeString("en-GB");
    document.getElementById("live-state").textContent =
      state === "on" ? "" : `Connection lost. Figures are from ${at}. Reconnecting…`;
  };
  let lastAt = Date.now();
  document.addEventListener("htmx:sse:before:message", (event) => {
    if (isLive(event.target)) lastAt = Date.now();
  });
  // A lost network does not end the stream; the browser's offline event comes sooner.
  addEventListener("offline", () => document.querySelector(".mr-live") && mark("off"));
  addEventListener("online", () => {
    if (!document.querySelector(".mr-live")) return;
    mark("on"); // if the stream has ended, it reports that itself
    document.querySelector(".mr-live").dispatchEvent(new CustomEvent("mr:again"));
  });
  document.addEventListener("htmx:sse:after:connection", (event) => isLive(event.target) && mark("on"));
  document.addEventListener("htmx:sse:error", (event) => {
    if (!isLive(event.target)) return;
    mark("off");
    if (event.detail.status === 401) signInAgain();
  });
  // htmx does not repeat the first attempt.
  const again = (event) => {
    if (!isLive(event.target)) return;
    mark("off");
    setTimeout(() => event.target.dispatchEvent(new CustomEvent("mr:again")), AGAIN_MS);
  };
  document.addEventListener("htmx:response:error", again);
  document.addEventListener("htmx:error", again);
  document.addEventListener("mr:signed-out", signInAgain);
})();
