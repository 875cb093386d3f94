// The model in a worker of its own, so that the page never waits.

let model = null;
let live = null; // a session of live speech

const TASKS = {
  async load({ bytes, wasm }, tell) {
    model = await Model.create(bytes, wasm, tell);
    return { ready: true };
  },
  look({ source, options }) {
    return lookAt(model, source, options);
  },
  partial({ source }) {
    return model.partial(source);
  },
  live({ source, first }) {
    if (first || !live) live = model.live();
    return live.write(source);
  },
};

onmessage = async ({ data: { number, task, ...given } }) => {
  try {
    postMessage({ number, result: await TASKS[task](given, (progress) => postMessage({ number, progress })) });
  } catch (error) {
    postMessage({ number, error: error.message });
  }
};
