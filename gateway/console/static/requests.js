// Requests: one request in the drawer, and new rows that wait while the user reads further down.
(() => {
  const TOP_PX = 160;
  const drawer = document.getElementById("request-drawer");
  const shown = document.getElementById("request-shown");
  const pause = document.getElementById("requests-pause");

  document.addEventListener("click", async (event) => {
    const link = event.target.closest("a[data-drawer]");
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    if (await show(link.href)) history.pushState({ drawer: true }, "", link.href);
  });

  const show = async (address) => {
    await htmx.ajax("GET", address, { target: "#request-shown", swap: "innerHTML" });
    if (shown.childElementCount === 0) return false; // a toast showed the error
    if (!drawer.open) drawer.showModal();
    drawer.firstElementChild.scrollTop = 0;
    shown.focus();
    return true;
  };
  // The drawer has the request's address: back closes it, forward opens it again, and closing it goes back.
  drawer?.addEventListener("close", () => {
    if (history.state?.drawer) history.back();
  });
  addEventListener("popstate", async (event) => {
    if (event.state?.drawer) await show(location.href);
    else if (drawer?.open) drawer.close();
  });

  let isPaused = false;
  let goOn = () => {};
  const waits = () => isPaused || scrollY > TOP_PX;
  const look = () => {
    if (!waits()) goOn();
  };
  // Stop reading the stream: what arrives meanwhile is shown later, in its last state.
  document.addEventListener("htmx:sse:before:message", (event) => {
    if (waits()) event.detail.waitUntil(new Promise((resolve) => (goOn = resolve)));
  });
  addEventListener("scroll", look, { passive: true });
  pause?.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.querySelector("span").textContent = isPaused ? "Paused" : "Pause";
    look();
  });
})();
