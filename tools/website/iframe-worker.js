// Search in a site that is opened as files: browsers start no worker from a file, so its script runs
// in a hidden frame instead. Over HTTP nothing is changed.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => {
        const message = new MessageEvent("message", { data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      };
      this.inside.importScripts = () => {};
      this.ready = new Promise((resolve) => {
        const script = frame.contentDocument.createElement("script");
        script.src = new URL(address, location.href).href;
        script.onload = resolve;
        frame.contentDocument.body.append(script);
      });
    }
    postMessage(data) {
      this.ready.then(() => {
        const message = new this.inside.MessageEvent("message", { data });
        this.inside.dispatchEvent(message);
        if (this.inside.onmessage) this.inside.onmessage(message);
      });
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
