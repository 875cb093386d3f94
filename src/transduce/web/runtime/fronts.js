// What encoders read, by kind.

import { Embedding } from "./embedding.js";
import { SpeechFront } from "./speech.js";

export const FRONTS = { tokens: Embedding, speech: SpeechFront };
