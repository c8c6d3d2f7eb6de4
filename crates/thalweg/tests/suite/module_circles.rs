//! Modules of a crate do not depend on each other in circles.
//!
//! The test reads sources as text and builds a graph of each crate, with one node per file. An edge means that
//! production code imports or names an item of another file. Re-exports are followed to the file that defines the item
//! and are no edges themselves, so a `mod.rs` or `lib.rs` may re-export the items of its children.
//!
//! A circle is a strongly connected component of two or more files. The test also counts circles of *rooms*: a room is
//! a module that `lib.rs` declares, with everything below it, as one node.
//!
//! Method calls name no module, so the graph does not contain them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};

/// Maximum number of rooms in a circle, for crates that have one. It may only be lowered; other crates have none.
///
/// A room of `state` has the rows of a subject, which the machine is above, and the commands of the subject, which the
/// machine is below. Only a room without commands, or a command that spans several subjects, can leave the circle.
const MAX_ROOMS: &[(&str, usize)] = &[("state", 8)];

#[test]
fn modules_form_no_circles() {
    let crates = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
    let names: BTreeSet<_> = crates.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.len() >= 20 && MAX_ROOMS.iter().all(|(name, _)| names.contains(*name)), "{names:?}");
    let mut wrong = Vec::new();
    for name in &names {
        let crate_graph = CrateSource::read(name).graph();
        let files = circles(&crate_graph);
        if !files.is_empty() {
            wrong.push(format!("{name}: files in a circle:\n{}", describe(&crate_graph, &files)));
        }
        let max_rooms = MAX_ROOMS.iter().find(|(limited, _)| limited == name).map_or(0, |(_, max)| *max);
        let room_graph = contract(&crate_graph);
        let rooms = circles(&room_graph);
        if rooms.iter().any(|circle| circle.len() > max_rooms) {
            let found = describe(&room_graph, &rooms);
            wrong.push(format!("{name}: more than {max_rooms} rooms in a circle:\n{found}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn the_graph_has_the_edges_that_it_should() {
    let sources = [
        ("", "pub mod a; mod b; mod c; pub use a::Made;"),
        ("a", "mod inner; pub use inner::Thing; pub(crate) fn f() {} pub struct Made;"),
        ("a::inner", "pub struct Thing; // crate::b::f()\n const T: &str = \"crate::b\"; pub(in crate::a) fn g() {}"),
        ("b", "use crate::{a::{self, Thing}, c::*}; fn f<'a>(c: &'a char) { a::f(); let _ = '\"'; super::c::g() }"),
        ("c", "pub fn g(_: crate::Made) {}\n#[cfg(test)]\nmod tests { use crate::b::f; fn t() { crate::a::f() } }"),
    ];
    let source = CrateSource::new(sources.map(|(module, text)| (module.to_owned(), text)).into_iter());
    let edges = |from: &str| source.graph()[from].iter().cloned().collect::<Vec<_>>();
    assert_eq!(edges("a"), Vec::<String>::new(), "a re-export is no use");
    assert_eq!(edges("a::inner"), Vec::<String>::new(), "comments, strings and visibilities are no uses");
    assert_eq!(edges("b"), ["a", "a::inner", "c"]);
    assert_eq!(edges("c"), ["a"], "tests are no production code");
    let graph = |edges: &[(&str, &[&str])]| -> Graph {
        edges.iter().map(|(from, to)| ((*from).to_owned(), to.iter().map(|to| (*to).to_owned()).collect())).collect()
    };
    assert!(circles(&graph(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])])).is_empty());
    let found = circles(&graph(&[("a", &["b"]), ("b", &["c"]), ("c", &["a", "d"]), ("d", &[])]));
    assert_eq!(found, [["a", "b", "c"]]);
}

/// Modules, named by their paths from the root (`""`), and the modules that each uses.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Joins every module with those below its first segment.
fn contract(graph: &Graph) -> Graph {
    let room = |module: &String| module.split("::").next().unwrap_or_default().to_owned();
    let mut rooms = Graph::new();
    for (module, used) in graph {
        let from = room(module);
        rooms.entry(from.clone()).or_default().extend(used.iter().map(room).filter(|to| *to != from));
    }
    rooms
}

/// Returns the strongly connected components of two or more nodes, the largest first.
fn circles(graph: &Graph) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|from| (from, reachable(graph, from))).collect();
    let mut found: BTreeSet<Vec<String>> = BTreeSet::new();
    for (from, reaches) in &reached {
        if reaches.contains(from) {
            found.insert(reaches.iter().filter(|to| reached[**to].contains(from)).map(|to| (*to).clone()).collect());
        }
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

fn reachable<'a>(graph: &'a Graph, from: &String) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&String> = graph[from].iter().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(&graph[module]);
        }
    }
    reached
}

fn describe(graph: &Graph, circles: &[Vec<String>]) -> String {
    let mut text = String::new();
    for circle in circles {
        text += &format!("  {} modules:\n", circle.len());
        for module in circle {
            let used: Vec<_> = graph[module].iter().filter(|used| circle.contains(used)).map(String::as_str).collect();
            text += &format!("    {module} uses {}\n", used.join(", "));
        }
    }
    text
}

/// The production code of one crate.
struct CrateSource {
    modules: BTreeMap<String, Module>,
}

/// Imports and named paths of one source file.
#[derive(Default)]
struct Module {
    /// Names that `use` declarations bring into scope, with the path of each as it is written.
    imports: BTreeMap<String, Vec<String>>,
    /// Paths in the code that could begin with a name in scope.
    paths: BTreeSet<Vec<String>>,
}

impl CrateSource {
    fn read(name: &str) -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        let files = rust_files(&dir).into_iter().map(|file| {
            let module = file.strip_prefix(&dir).unwrap().with_extension("");
            let mut names: Vec<_> = module.iter().map(|name| name.to_str().unwrap()).collect();
            names.pop_if(|last| ["lib", "mod"].contains(last));
            (names.join("::"), fs::read_to_string(&file).unwrap())
        });
        Self::new(files)
    }

    fn new<T: AsRef<str>>(files: impl Iterator<Item = (String, T)>) -> Self {
        Self {
            modules: files
                .map(|(name, text)| (name, Module::parse(&tokens(text.as_ref().parse().expect("Rust")))))
                .collect(),
        }
    }

    fn graph(&self) -> Graph {
        let edges = |name: &String, module: &Module| -> BTreeSet<String> {
            let used = module.paths.iter().filter_map(|path| self.resolve(name, path, 0));
            used.filter(|(to, is_item)| to != name && *is_item).map(|(to, _)| to).collect()
        };
        self.modules.iter().map(|(name, module)| (name.clone(), edges(name, module))).collect()
    }

    /// Returns the module that defines the item named by `path` in module `scope`, and true if `path` names an item
    /// rather than the module itself. Returns `None` for paths that lead out of the crate.
    fn resolve(&self, scope: &str, path: &[String], depth: usize) -> Option<(String, bool)> {
        let (first, rest) = path.split_first()?;
        if depth > 16 {
            return None;
        }
        let parent = || scope.rsplit_once("::").map_or("", |(parent, _)| parent);
        match first.as_str() {
            "crate" => return self.descend("", rest, depth),
            "self" => return self.descend(scope, rest, depth),
            "super" if rest.first().is_some_and(|next| next == "super") => {
                return self.resolve(parent(), rest, depth);
            }
            "super" => return self.descend(parent(), rest, depth),
            _ => {}
        }
        let known = self.modules.contains_key(&joined(scope, first)) || self.modules[scope].imports.contains_key(first);
        known.then(|| self.descend(scope, path, depth))?
    }

    /// Resolves `path` below module `from`.
    fn descend(&self, from: &str, path: &[String], depth: usize) -> Option<(String, bool)> {
        let Some((first, rest)) = path.split_first() else { return Some((from.to_owned(), false)) };
        let child = joined(from, first);
        if self.modules.contains_key(&child) {
            return self.descend(&child, rest, depth);
        }
        match self.modules[from].imports.get(first) {
            Some(import) => self.resolve(from, &[import.as_slice(), rest].concat(), depth + 1),
            None => Some((from.to_owned(), true)),
        }
    }
}

impl Module {
    fn parse(tokens: &[String]) -> Self {
        let mut module = Self::default();
        let mut at = 0;
        while at < tokens.len() {
            let before = |count| at.checked_sub(count).map_or("", |before| tokens[before].as_str());
            if tokens[at] == "use" {
                let end = tokens[at..].iter().position(|token| token == ";").map_or(tokens.len(), |length| at + length);
                let offered = before(1) == "pub" || before(1) == ")";
                module.import(&tokens[at + 1..end], &mut Vec::new(), offered);
                at = end;
            } else if is_name(&tokens[at])
                && ![".", "::"].contains(&before(1))
                && [before(3), before(1)] != ["pub", "in"]
            {
                let length =
                    tokens[at..].chunks(2).take_while(|pair| pair.len() == 2 && is_name(&pair[0]) && pair[1] == "::");
                let names = length.count() + 1;
                module.paths.insert(tokens[at..].iter().step_by(2).take(names).cloned().collect());
                at += 2 * (names - 1);
            }
            at += 1;
        }
        module
    }

    /// Adds the names of a `use` tree after the prefix `base`. Pure re-exports (`pub use`) are no uses.
    fn import(&mut self, tree: &[String], base: &mut Vec<String>, offered: bool) {
        let length = base.len();
        let names = tree.iter().take_while(|token| (is_name(token) && *token != "as") || *token == "::").count();
        base.extend(tree[..names].iter().filter(|token| *token != "::").cloned());
        match tree.get(names).map(String::as_str) {
            Some("{") => {
                let mut depth = 0;
                let branches = tree[names + 1..tree.len() - 1].split(|token| {
                    depth += i32::from(token == "{") - i32::from(token == "}");
                    depth == 0 && token == ","
                });
                branches.filter(|branch| !branch.is_empty()).for_each(|branch| self.import(branch, base, offered));
            }
            found => {
                base.pop_if(|last| last == "self" && length > 0);
                base.extend((found == Some("*")).then(|| "*".to_owned()));
                let name = if found == Some("as") { tree.last() } else { base.last() };
                self.imports.insert(name.cloned().unwrap_or_default(), base.clone());
                self.paths.extend((!offered).then(|| base.clone()));
            }
        }
        base.truncate(length);
    }
}

fn joined(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Returns names, `::` and single signs in order, without literals and without items for tests.
fn tokens(stream: TokenStream) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        match tree {
            TokenTree::Group(group) if is_cfg_test(&group) => {
                // The item under test ends with its first block or semicolon.
                trees.by_ref().find(|tree| match tree {
                    TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                    tree => tree.to_string() == ";",
                });
            }
            TokenTree::Group(group) => {
                let [begin, end] = if group.delimiter() == Delimiter::Brace { ["{", "}"] } else { ["(", ")"] };
                tokens.push(begin.to_owned());
                tokens.extend(self::tokens(group.stream()));
                tokens.push(end.to_owned());
            }
            TokenTree::Punct(sign) if sign.as_char() == ':' && sign.spacing() == Spacing::Joint => {
                trees.next();
                tokens.push("::".to_owned());
            }
            TokenTree::Literal(_) => tokens.push("_".to_owned()),
            tree => tokens.push(tree.to_string()),
        }
    }
    tokens
}

/// Returns true for the brackets of `#[cfg(test)]`. It converts only groups of two tokens to text, because the text of
/// a group contains that of all groups in it.
fn is_cfg_test(group: &Group) -> bool {
    group.stream().into_iter().count() == 2 && group.stream().to_string().replace(' ', "") == "cfg(test)"
}

/// Returns all `.rs` files below `dir`, except files that contain only tests.
fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_test = |path: &PathBuf| {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        stem == "tests" || stem.ends_with("_tests")
    };
    let files = entries.filter(|path| !is_test(path));
    files.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] }).collect()
}
