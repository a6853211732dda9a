// OpenAI's npm client and Vercel's AI SDK, as they are, against the gateway that the environment names.
// Each test prints what it saw as one line of JSON; the Python side says what is right.
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const { BASE_URL: baseURL, API_KEY: apiKey, MODEL: model } = process.env;
const openai = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const vercel = createOpenAI({ baseURL, apiKey });
const question = "How is the weather in Paris?";
const messages = [{ role: "user", content: question }];
const weather = {
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.string(), degrees: z.number() }),
  execute: async () => "sunny",
};

const tests = {
  async "openai chat"() {
    return (await openai.chat.completions.create({ model, messages })).choices[0].message.content;
  },
  async "openai stream"() {
    let text = "";
    for await (const chunk of await openai.chat.completions.create({ model, messages, stream: true }))
      text += chunk.choices[0]?.delta?.content ?? "";
    return text;
  },
  async "openai responses stream"() {
    let text = "";
    for await (const event of await openai.responses.create({ model, input: question, stream: true }))
      if (event.type === "response.output_text.delta") text += event.delta;
    return text;
  },
  async "openai error"() {
    return openai.responses.create({ model: "none", input: question }).catch((error) => error.status);
  },
};

for (const [name, of] of [["chat", vercel.chat(model)], ["responses", vercel.responses(model)]]) {
  tests[`vercel ${name}`] = async () => (await generateText({ model: of, prompt: question })).text;
  tests[`vercel ${name} stream`] = async () => {
    let text = "";
    for await (const part of streamText({ model: of, prompt: question }).textStream) text += part;
    return text;
  };
  tests[`vercel ${name} object`] = async () =>
    (await generateObject({ model: of, prompt: question, schema: weather.inputSchema })).object;
  // Two rounds: the second points at what was said in the first, which the gateway has stored.
  tests[`vercel ${name} tools`] = async () => {
    const tools = { weather: tool(weather) };
    const result = streamText({ model: of, prompt: question, tools, stopWhen: stepCountIs(2) });
    let text = "";
    for await (const part of result.textStream) text += part;
    return text;
  };
}

for (const [name, run] of Object.entries(tests)) {
  const saw = await run().catch((error) => `${error.name}: ${error.message}`);
  console.log(JSON.stringify({ name, saw }));
}
