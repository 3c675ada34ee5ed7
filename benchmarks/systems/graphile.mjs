// graphile-worker: `graphile.mjs migrate URL`, or `graphile.mjs work URL CONCURRENCY LOCAL_QUEUE`.
import { createInterface } from "node:readline";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.EFFECTS_BENCH_NODE}/`);
const { Logger, run, runMigrations } = require("graphile-worker");

const [what, connectionString, concurrency, localQueue] = process.argv.slice(2);
const logger = new Logger(() => () => {});

if (what === "migrate") {
  await runMigrations({ connectionString, logger });
  process.exit(0);
}

const worker = {
  connectionString,
  concurrentJobs: Number(concurrency),
  maxPoolSize: Number(concurrency) + 1,
  localQueue: { size: Number(localQueue) },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  if (line === "go") break;
}
await run({ preset: { worker }, logger, taskList: { noop: async () => {} }, noHandleSignals: true });
