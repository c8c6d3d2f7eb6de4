//! Requests as browsers send them for pages of other origins, and for names that lead here by rebinding.

use serde_json::json;
use thalweg_server::config::{AllowedHosts, Setting as _};
use tokio::net::TcpStream;

use crate::support::{Node, holds};

/// Starts a node with the default hosts. Its own address is the name to call it by.
async fn node() -> (Node, String) {
    let node = Node::with(|config| config.allowed_hosts = AllowedHosts::default()).await;
    let own = node.address.to_string();
    (node, own)
}

#[tokio::test]
async fn a_name_that_leads_here_by_rebinding_gets_nothing() {
    let (node, own) = node().await;
    node.call("PUT", "/v1/kv/a/k", &[("host", &own)], b"secret").await.is(204);
    let port = node.address.port();
    for host in ["evil.example".to_owned(), format!("evil.example:{port}"), format!("0.0.0.0:{port}")] {
        for (method, target) in [
            ("GET", "/v1/kv/a/k"),
            ("PUT", "/v1/kv/a/k"),
            ("DELETE", "/v1/kv/a/k"),
            ("GET", "/metrics"),
            ("GET", "/v1/status"),
            ("GET", "/health"),
            ("GET", "/nowhere"),
            ("GET", "/"),
        ] {
            let error =
                node.call(method, target, &[("host", &host)], b"").await.refused(403, "host_not_allowed", "fix");
            holds(error["message"].as_str().unwrap(), "allowed_hosts");
        }
    }
    for host in [own.clone(), format!("localhost:{port}"), "LOCALHOST".to_owned(), format!("[::1]:{port}")] {
        assert_eq!(node.call("GET", "/v1/kv/a/k", &[("host", &host)], b"").await.is(200).body, b"secret", "{host}");
    }
    let metrics = node.call("GET", "/metrics", &[("host", &own)], b"").await.is(200).body;
    holds(&String::from_utf8(metrics).unwrap(), "http_requests_total{operation=\"kv_get\",status=\"4xx\"} 3");
    node.stop().await;
}

#[tokio::test]
async fn http2_names_its_host_in_the_target() {
    let (node, own) = node().await;
    let stream = TcpStream::connect(node.address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    for (host, status) in [("evil.example", 403), (own.as_str(), 200)] {
        let request = http::Request::get(format!("http://{host}/v1/kv")).body(()).unwrap();
        let (reply, _) = client.send_request(request, true).unwrap();
        assert_eq!(reply.await.unwrap().status(), status, "{host}");
    }
    let request = http::Request::get(format!("http://{own}/v1/kv")).header("origin", "http://evil.example");
    let (reply, _) = client.send_request(request.body(()).unwrap(), true).unwrap();
    assert_eq!(reply.await.unwrap().status(), 403);
    drop(client);
    driver.abort();
    node.stop().await;
}

#[tokio::test]
async fn configured_names_are_served() {
    let node =
        Node::with(|config| config.allowed_hosts = AllowedHosts::parse("db.example.com,192.0.2.7").unwrap()).await;
    for (host, status) in
        [("db.example.com", 200), ("DB.example.com:80", 200), ("192.0.2.7:7070", 200), ("example.com", 403)]
    {
        node.call("GET", "/v1/kv", &[("host", host)], b"").await.is(status);
    }
    // A proxy that adds TLS passes the name on. Pages that it serves under the name are of the same origin.
    let own = [("host", "db.example.com"), ("origin", "https://db.example.com"), ("sec-fetch-site", "same-origin")];
    node.call("PUT", "/v1/kv/a/k", &own, b"v").await.is(204);
    node.stop().await;
    let any = Node::with(|config| config.allowed_hosts = AllowedHosts::Any).await;
    any.call("GET", "/v1/kv", &[("host", "evil.example")], b"").await.is(200);
    any.stop().await;
}

#[tokio::test]
async fn pages_of_other_origins_cannot_use_the_node() {
    let (node, own) = node().await;
    node.call("PUT", "/v1/kv/a/k", &[("host", &own)], b"mine").await.is(204);
    let form = "application/x-www-form-urlencoded";
    // A form, an image, a script, and requests without the consent of CORS, each as a browser sends them.
    for (method, target, headers) in [
        ("POST", "/v1/streams/s/records", vec![("origin", "http://evil.example"), ("content-type", form)]),
        ("POST", "/v1/streams/s/records", vec![("origin", "null"), ("content-type", "text/plain")]),
        ("POST", "/v1/streams/s/records", vec![("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")]),
        ("POST", "/v1/kv/a/n?add=1", vec![("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")]),
        ("POST", "/v1/echo", vec![("origin", "http://evil.example")]),
        ("GET", "/v1/kv/a/k", vec![("sec-fetch-site", "cross-site"), ("sec-fetch-dest", "image")]),
        ("GET", "/v1/kv/a/k", vec![("sec-fetch-site", "same-site"), ("sec-fetch-dest", "script")]),
        ("GET", "/v1/snapshot", vec![("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]),
        ("GET", "/metrics", vec![("sec-fetch-site", "cross-site")]),
        ("DELETE", "/v1/kv/a/k", vec![("origin", "http://evil.example")]),
        ("PUT", "/v1/kv/a/k", vec![("origin", "http://evil.example")]),
        ("OPTIONS", "/v1/kv/a/k", vec![("origin", "http://evil.example"), ("access-control-request-method", "PUT")]),
    ] {
        let headers: Vec<_> = headers.into_iter().chain([("host", own.as_str())]).collect();
        let refused = node.call(method, target, &headers, b"a=b").await;
        assert!(!refused.headers.keys().any(|name| name.starts_with("access-control")), "{refused:?}");
        refused.refused(403, "cross_site", "fix");
    }
    for target in ["/", "/health", "/ready", "/openapi.json"] {
        let from_a_link = [("host", own.as_str()), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
        node.call("GET", target, &from_a_link, b"").await.is(200);
    }
    let kept = node.call("GET", "/v1/kv/a/k", &[("host", &own), ("sec-fetch-site", "none")], b"").await.is(200);
    assert_eq!(kept.body, b"mine");
    let streams = node.call("GET", "/v1/streams", &[("host", &own)], b"").await.is(200).json();
    assert_eq!(streams["streams"], json!([]), "nothing was written");
    let origin = format!("http://{own}");
    let page = [("host", own.as_str()), ("origin", origin.as_str()), ("sec-fetch-site", "same-origin")];
    node.call("PUT", "/v1/kv/a/k", &page, b"a page of the node").await.is(204);
    node.stop().await;
}

/// Over plain HTTP to an address that is not loopback, browsers do not say which page caused a request.
#[tokio::test]
async fn browsers_withhold_replies_from_pages_of_other_origins() {
    let (node, own) = node().await;
    let host = [("host", own.as_str())];
    node.call("PUT", "/v1/kv/a/k", &host, b"window.stolen = 1").await.is(204);
    node.call("POST", "/v1/streams/s/records", &host, b"x").await.is(200);
    for (method, target) in [
        ("GET", "/v1/kv/a/k"),
        ("HEAD", "/v1/kv/a/k"),
        ("GET", "/v1/kv/a/missing"),
        ("GET", "/v1/kv/a"),
        ("GET", "/v1/kv"),
        ("GET", "/v1/streams/s/records"),
        ("GET", "/v1/snapshot"),
        ("GET", "/v1/status"),
        ("GET", "/metrics"),
        ("GET", "/nowhere"),
        ("GET", "/v1/txn"),
    ] {
        let reply = node.call(method, target, &host, b"").await;
        let header = |name: &str| reply.headers.get(name).map_or("", String::as_str);
        assert_eq!(header("cross-origin-resource-policy"), "same-origin", "{method} {target}: {reply:?}");
        assert_eq!(header("x-content-type-options"), "nosniff", "{method} {target}: {reply:?}");
    }
    for target in ["/", "/health", "/ready", "/openapi.json"] {
        let reply = node.call("GET", target, &host, b"").await.is(200);
        assert!(!reply.headers.contains_key("cross-origin-resource-policy"), "{target}");
    }
    node.stop().await;
}

#[tokio::test]
async fn json_is_only_taken_where_it_is_labelled() {
    let node = Node::start().await;
    node.put("/v1/streams/s", b"").await.is(201);
    node.put("/v1/streams/s/groups/g", b"").await.is(201);
    let group = "/v1/streams/s/groups/g";
    let routes = [
        ("POST", "/v1/commit".to_owned()),
        ("POST", "/v1/txn".to_owned()),
        ("POST", "/v1/leases".to_owned()),
        ("POST", "/v1/state/version".to_owned()),
        ("POST", "/v1/streams/s/trim".to_owned()),
        ("PUT", "/v1/streams/s".to_owned()),
        ("PATCH", "/v1/streams/s".to_owned()),
        ("PUT", "/v1/keyspaces/k".to_owned()),
        ("PATCH", "/v1/keyspaces/k".to_owned()),
        ("PUT", group.to_owned()),
        ("PATCH", group.to_owned()),
        ("POST", format!("{group}/fetch")),
        ("POST", format!("{group}/ack")),
        ("POST", format!("{group}/nack")),
        ("POST", format!("{group}/extend")),
        ("POST", format!("{group}/seek")),
        ("PUT", "/v1/caches/c".to_owned()),
        ("POST", "/v1/caches/c/get".to_owned()),
        ("POST", "/v1/caches/c/put".to_owned()),
        ("PUT", "/keys".to_owned()),
        ("POST", "/keys/batch".to_owned()),
    ];
    node.put("/v1/caches/c", b"").await.is(201);
    for (method, target) in &routes {
        for given in [None, Some("application/x-www-form-urlencoded"), Some("text/plain"), Some("multipart/form-data")]
        {
            let headers: Vec<_> = given.map(|given| ("content-type", given)).into_iter().collect();
            let reply = node.call(method, target, &headers, b"{}").await;
            assert_eq!(reply.status, 415, "{method} {target} {given:?}: {reply:?}");
            let error = reply.refused(415, "unsupported_media_type", "fix");
            holds(error["message"].as_str().unwrap(), "application/json");
        }
        let json = [("content-type", "application/json; charset=utf-8")];
        assert_ne!(node.call(method, target, &json, b"{}").await.status, 415, "{method} {target}");
    }
    node.stop().await;
}

#[tokio::test]
async fn raw_values_need_no_label() {
    let node = Node::start().await;
    for given in [None, Some("application/x-www-form-urlencoded"), Some("text/plain"), Some("image/png")] {
        let headers: Vec<_> = given.map(|given| ("content-type", given)).into_iter().collect();
        node.call("PUT", "/v1/kv/a/k", &headers, b"value").await.is(204);
        node.call("PUT", "/v0/entity?id=k", &headers, b"value").await.is(201);
        node.call("PUT", "/keys/k", &headers, b"value").await.is(200);
        node.call("PUT", "/v1/caches/c/keys/k", &headers, b"value").await.is(204);
        // A request without a body needs no label either.
        node.call("PUT", "/v1/streams/s", &headers, b"").await;
        node.call("POST", "/v1/kv/a/n?add=1", &headers, b"").await.is(200);
    }
    node.call("POST", "/v1/streams/s/records", &[], b"payload").await.is(200);
    let form = [("content-type", "application/x-www-form-urlencoded")];
    node.call("POST", "/v1/streams/s/records", &form, b"a=b").await.refused(415, "unsupported_media_type", "fix");
    node.stop().await;
}
