// The model in a worker of its own, so that the page never waits.

let model = null;

const TASKS = {
  async load({ bytes, wasm }) {
    model = await Model.create(bytes, wasm);
    return { ready: true };
  },
  look({ text, options }) {
    return lookAt(model, text, options);
  },
};

onmessage = async ({ data: { number, task, ...given } }) => {
  try {
    postMessage({ number, result: await TASKS[task](given) });
  } catch (error) {
    postMessage({ number, error: error.message });
  }
};
