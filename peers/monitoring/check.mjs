// Checks that a dashboard has the type in schema.ts: check.mjs DASHBOARD.json
//
// The compiler of TypeScript reads the file's text as a value of that type, so a wrong name, type or value of an option and a
// missing field are errors of its compilation. The program also plants errors in copies, and fails if one is not found.

import { readFileSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

const here = dirname(fileURLToPath(import.meta.url));
const options = { strict: true, noEmit: true, skipLibCheck: true, module: ts.ModuleKind.ESNext,
  moduleResolution: ts.ModuleResolutionKind.Bundler, target: ts.ScriptTarget.ES2022, types: [] };

// The type comes behind the text, so lines of the text keep their numbers.
const before = 'export const board = ';
const behind = " satisfies import('./schema').Board;\n";

/** Changes to the dashboard that the schema must reject. */
const PLANTED = [
  ['a field with a wrong type', (board) => { board.schemaVersion = String(board.schemaVersion); }],
  ['an unknown field', (board) => { board.titel = board.title; }],
  ['a number that is no value of its enum', (board) => { board.graphTooltip = 7; }],
  ['an unknown type of panel', (board) => { panel(board, 'timeseries').type = 'timeserie'; }],
  ['a position without a width', (board) => { delete panel(board, 'timeseries').gridPos.w; }],
  ['a row that is neither open nor closed', (board) => { delete panel(board, 'row').collapsed; }],
  ['an unknown option of a panel', (board) => { panel(board, 'stat').options.colourMode = 'value'; }],
  ['a wrong value of an option', (board) => { panel(board, 'stat').options.colorMode = 'vallue'; }],
  ['an option of another type of panel', (board) => { panel(board, 'timeseries').options.graphMode = 'area'; }],
  ['an unknown setting of fields', (board) => { panel(board, 'timeseries').fieldConfig.defaults.units = 's'; }],
  ['a wrong value of a setting', (board) => { panel(board, 'timeseries').fieldConfig.defaults.custom.drawStyle = 'lines'; }],
  ['a query without an expression', (board) => { delete panel(board, 'stat').targets[0].expr; }],
  ['an unknown field of a query', (board) => { panel(board, 'stat').targets[0].legend = 'x'; }],
  ['an unknown type of variable', (board) => { board.templating.list[0].type = 'datasources'; }],
  ['a wrong value of a variable', (board) => { board.templating.list[0].refresh = 7; }],
];

function panel(board, type) {
  return board.panels.find((panel) => panel.type === type);
}

function write(name, text) {
  const path = join(here, name);
  writeFileSync(path, before + text.trimEnd() + behind);
  return path;
}

const [file] = process.argv.slice(2);
if (file === undefined) {
  console.error('usage: check.mjs DASHBOARD.json');
  process.exit(2);
}
const text = readFileSync(file, 'utf8');
const original = write('board.ts', text);
const copies = PLANTED.map(([, plant], number) => {
  const board = JSON.parse(text);
  plant(board);
  return write(`planted-${number}.ts`, JSON.stringify(board, null, 1));
});
const program = ts.createProgram([original, ...copies], options);

const faultsOf = (path) => {
  const source = program.getSourceFile(path);
  return [...program.getSyntacticDiagnostics(source), ...program.getSemanticDiagnostics(source)];
};

let failed = false;
const fail = (line) => {
  failed = true;
  console.error(line);
};
program.getGlobalDiagnostics().concat(program.getOptionsDiagnostics()).forEach(({ messageText }) => {
  fail(ts.flattenDiagnosticMessageText(messageText, '\n'));
});
for (const fault of faultsOf(original)) {
  const line = fault.file.getLineAndCharacterOfPosition(fault.start).line + 1;
  fail(`${basename(file)}:${line}: ${ts.flattenDiagnosticMessageText(fault.messageText, '\n')}`);
}
PLANTED.forEach(([what], number) => {
  if (faultsOf(copies[number]).length <= faultsOf(original).length) {
    fail(`the schema accepts ${what}`);
  }
});
if (failed) {
  process.exit(1);
}
const { version } = JSON.parse(readFileSync(join(here, 'node_modules/@grafana/schema/package.json'), 'utf8'));
console.log(`${basename(file)} has the types of @grafana/schema ${version}; ${PLANTED.length} planted errors are found`);
