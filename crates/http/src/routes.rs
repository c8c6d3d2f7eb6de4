//! Selection of an operation by the method and path of a request.
//!
//! Owns: the search tree over the paths of the table of routes, and the methods of each path. Does not own: the table
//! (`dispatch`), and the parameters in a path. Each handler parses them from the path as the client sent it.

use std::sync::LazyLock;

use http::{HeaderValue, Method};

use crate::dispatch::{Operation, ROUTES};

/// Operations of one path template, one for each method.
struct PathOperations {
    methods: Vec<(Method, Operation)>,
    /// Value of the `Allow` header in replies to requests with a method that the path does not have.
    allow: HeaderValue,
}

static PATHS: LazyLock<matchit::Router<PathOperations>> = LazyLock::new(|| {
    let mut paths: Vec<&str> = ROUTES.iter().map(|route| route.path).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut router = matchit::Router::new();
    for path in paths {
        router.insert(path, PathOperations::of(path)).expect("the paths of the table do not overlap");
    }
    router
});

/// Operation that a request selects.
#[derive(Debug)]
pub(crate) struct Selected {
    pub operation: Operation,
    /// True if a `HEAD` request selects the operation of `GET`. The reply is then sent without its body.
    pub is_without_body: bool,
    /// Value of the `Allow` header if the path does not have the method; `None` otherwise.
    pub allow: Option<&'static HeaderValue>,
}

impl PathOperations {
    fn of(path: &str) -> Self {
        let methods: Vec<_> = ROUTES
            .iter()
            .filter(|route| route.path == path)
            .map(|route| (route.method.parse().expect("the table names methods of HTTP"), route.operation))
            .collect();
        let mut names: Vec<&str> = methods.iter().map(|(method, _): &(Method, _)| method.as_str()).collect();
        if names.contains(&"GET") && !names.contains(&"HEAD") {
            names.push("HEAD");
        }
        names.sort_unstable();
        let allow = HeaderValue::from_str(&names.join(", ")).expect("names of methods are printable");
        Self { methods, allow }
    }

    fn operation(&self, wanted: &Method) -> Option<Operation> {
        self.methods.iter().find(|(method, _)| method == wanted).map(|&(_, operation)| operation)
    }
}

/// Selects the operation of a request. A `HEAD` request selects the operation of `GET` if the path has none of its own.
pub(crate) fn select(method: &Method, path: &str) -> Selected {
    let selected = |operation| Selected { operation, is_without_body: false, allow: None };
    let Ok(found) = PATHS.at(path) else { return selected(Operation::Unknown) };
    let operations = found.value;
    match operations.operation(method) {
        Some(operation) => selected(operation),
        None if method == Method::HEAD
            && let Some(operation) = operations.operation(&Method::GET) =>
        {
            Selected { is_without_body: true, ..selected(operation) }
        }
        None => Selected { allow: Some(&operations.allow), ..selected(Operation::WrongMethod) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_selects_its_operation() {
        for route in ROUTES {
            let path = route.path.replace("{*", "a/{").replace(['{', '}'], "");
            let found = select(&route.method.parse().unwrap(), &path);
            assert_eq!(found.operation, route.operation, "{} {path}", route.method);
            assert!(found.allow.is_none() && !found.is_without_body);
        }
    }

    #[test]
    fn a_head_request_selects_the_operation_of_get() {
        let found = select(&Method::HEAD, "/health");
        assert_eq!((found.operation, found.is_without_body), (Operation::Health, true));
        let found = select(&Method::HEAD, "/v1/kv/a/b");
        assert_eq!((found.operation, found.is_without_body), (Operation::KvHead, false));
    }

    #[test]
    fn another_method_gets_the_methods_of_the_path() {
        let found = select(&Method::PUT, "/v1/txn");
        assert_eq!((found.operation, found.allow.unwrap().to_str().unwrap()), (Operation::WrongMethod, "POST"));
        let found = select(&Method::PATCH, "/v1/leases");
        assert_eq!(found.allow.unwrap().to_str().unwrap(), "GET, HEAD, POST");
        assert_eq!(select(&Method::from_bytes(b"PURGE").unwrap(), "/v1/kv/a/b").operation, Operation::WrongMethod);
    }

    #[test]
    fn a_path_outside_the_table_selects_no_operation() {
        for path in ["", "/v1", "/v2/kv/a/b", "/v1/kv/a/b/../..x", "*"] {
            let found = select(&Method::GET, path);
            let expected = if path.starts_with("/v1/kv/") { Operation::KvGet } else { Operation::Unknown };
            assert_eq!(found.operation, expected, "{path:?}");
        }
    }
}
