//! Decision of an empty node that should found a cluster together with other nodes (option `expect`).
//!
//! Owns: asking the other nodes for their history, and the rule of the decision. Does not own: joining and founding
//! (`tasks`).
//!
//! | the nodes at the addresses `join` | this node |
//! |---|---|
//! | one has voted or has entries, or is too old to report it | asks to join, and founds nothing |
//! | one is this node itself, under another spelling of its address | leaves that address out |
//! | one gives no answer | waits: it may have the only copy of the data |
//! | all are empty, and this node has the lowest id of `expect` nodes | founds the cluster |
//! | all are empty otherwise | waits for the node with the lowest id |
//!
//! So a node with a lost directory joins the cluster that it was in, under a new id. If a majority loses its
//! directories, no second cluster is founded beside the data of the other nodes. A second cluster would have the same
//! id and overwrite that data.

use std::collections::BTreeMap;

use thalweg_raft::History;
use thalweg_replica::NodeInfo;
use thalweg_types::NodeId;
use thalweg_wire::peer::{AskHistory, Describe};
use tokio::time::Instant;

use crate::{
    about::AboutNode,
    link::{AnsweredHistory, CallError, Link},
};

/// Answer of the node at one of the addresses in `join`, from which an empty node decides what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The node has no vote and no log entry. Contains its id and its name.
    Empty(NodeId, String),
    /// The node may have data of the cluster. The text says why this node assumes so.
    InUse(String),
    /// This node itself has answered: the address is another spelling of its own.
    Own,
    /// The node did not answer. The text is the reason.
    Silent(String),
}

/// Next step of an empty node that may found or join a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Found the cluster. Contains its first members: their ids, names and addresses.
    Found(BTreeMap<NodeId, NodeInfo>),
    /// Ask to join the cluster, because another node may have its data. The text names that node.
    Join(String),
    /// Do nothing now and ask the other nodes again later. The text is the reason.
    Wait(String),
}

/// Asks the node at the other end of a link for its history and its name. Both questions use one connection, so one
/// process answers both.
pub(crate) async fn ask(link: &Link, deadline: Instant) -> Answer {
    let answered = async {
        let connection = link.connection(deadline).await?;
        let history: History = connection.send(&AskHistory {}).await?.wait::<AnsweredHistory, _>(deadline).await?;
        let about: AboutNode = connection.send(&Describe {}).await?.wait::<AboutNode, _>(deadline).await?;
        Ok::<_, CallError>((connection.node(), about.name, history))
    };
    match answered.await {
        Ok((node, name, history)) if history.is_empty() => Answer::Empty(node, name),
        Ok((_, _, history)) => {
            let what = if history.has_entries { "has data of the cluster" } else { "has voted in the cluster" };
            Answer::InUse(what.to_owned())
        }
        Err(CallError::Failed { code, .. }) if code == "unknown_kind" => {
            Answer::InUse("runs an earlier version, which cannot tell whether it has data".to_owned())
        }
        Err(CallError::OwnAddress) => Answer::Own,
        Err(error) => Answer::Silent(error.to_string()),
    }
}

/// Returns this node's next step. `own` are the id and description of this node, `expect` is the number of nodes that
/// found the cluster together, and `answers` are the answers from all other addresses.
pub(crate) fn decide(own: (NodeId, NodeInfo), expect: usize, answers: Vec<(String, Answer)>) -> Step {
    let here = own.0;
    let mut members = BTreeMap::from([own]);
    let mut silent = None;
    for (address, answer) in answers {
        match answer {
            Answer::InUse(reason) => return Step::Join(format!("the node at {address} {reason}")),
            Answer::Own => {}
            Answer::Silent(reason) => silent = Some(format!("no answer from {address}: {reason}")),
            Answer::Empty(node, name) => _ = members.insert(node, NodeInfo { name, ..NodeInfo::at(address) }),
        }
    }
    if let Some(reason) = silent {
        return Step::Wait(reason);
    }
    if members.len() != expect {
        return Step::Wait(format!("{} of {expect} nodes that found the cluster are known", members.len()));
    }
    if members.keys().next() != Some(&here) {
        return Step::Wait("another node founds the cluster".to_owned());
    }
    Step::Found(members)
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use futures_util::FutureExt;
    use thalweg_types::Action;
    use thalweg_wire::peer::{Channel, Description, Failed, PeerKind};

    use super::*;
    use crate::{
        frames::encoded,
        tasks::ASK_LIMIT,
        testing::{SERVER, Server, run},
    };

    fn own(id: u64) -> (NodeId, NodeInfo) {
        (NodeId(id), NodeInfo { name: "own".to_owned(), ..NodeInfo::at("own:1") })
    }

    fn answers(all: &[Answer]) -> Vec<(String, Answer)> {
        all.iter().enumerate().map(|(number, answer)| (format!("n{number}:1"), answer.clone())).collect()
    }

    fn empty(id: u64) -> Answer {
        Answer::Empty(NodeId(id), format!("name{id}"))
    }

    #[test]
    fn the_node_with_the_lowest_id_founds_once_all_others_are_known_to_be_empty() {
        let Step::Found(members) = decide(own(3), 3, answers(&[empty(5), empty(4)])) else { panic!("it founds") };
        let members: Vec<_> = members.iter().map(|(node, info)| (node.0, info.to_string())).collect();
        let expected = [(3, "own (own:1)"), (4, "name4 (n1:1)"), (5, "name5 (n0:1)")];
        assert_eq!(members, expected.map(|(node, info)| (node, info.to_owned())));
        for (others, part) in [
            (vec![empty(5), empty(2)], "another node founds"),
            (vec![empty(5)], "2 of 3"),
            (vec![empty(5), Answer::Own], "2 of 3"),
            (vec![empty(5), empty(4), empty(6)], "4 of 3"),
            (vec![empty(5), Answer::Silent("refused".to_owned())], "n1:1: refused"),
        ] {
            let step = decide(own(3), 3, answers(&others));
            assert!(matches!(&step, Step::Wait(reason) if reason.contains(part)), "{step:?}");
        }
    }

    /// The list `join` may contain host names, but the node itself only knows the IP address at which it listens.
    #[test]
    fn an_own_address_in_another_spelling_is_left_out() {
        let Step::Found(members) = decide(own(3), 3, answers(&[empty(5), Answer::Own, empty(4)])) else {
            panic!("it founds")
        };
        assert_eq!(members.keys().map(|node| node.0).collect::<Vec<_>>(), [3, 4, 5]);
        run(async {
            let server = Server::start(|_, _| unreachable!("no request arrives")).await;
            let itself = Link::new(
                crate::testing::credentials(SERVER, 5),
                crate::link::UNKNOWN,
                server.address.to_string(),
                Channel::Control,
                crate::link::Path::default(),
            );
            assert_eq!(ask(&itself, Instant::now() + ASK_LIMIT * 10).await, Answer::Own);
        });
    }

    /// If any node has a history, no node founds a cluster, however many directories were lost.
    #[test]
    fn a_node_with_a_history_is_joined_and_never_founded_against() {
        let used = || Answer::InUse("has data of the cluster".to_owned());
        for others in [vec![empty(5), used()], vec![used(), empty(4)], vec![Answer::Silent(String::new()), used()]] {
            let step = decide(own(3), 3, answers(&others));
            assert!(matches!(&step, Step::Join(reason) if reason.contains("has data")), "{step:?}");
        }
    }

    /// Asks a node that answers the question about its history with `history`. With `None`, the node is too old to know
    /// this question.
    fn asked(history: Option<History>) -> Answer {
        let answer = std::rc::Rc::new(std::cell::RefCell::new(None));
        let found = std::rc::Rc::clone(&answer);
        run(async move {
            let server = Server::start(move |_, request| {
                let (code, text) = ("unknown_kind", "");
                let reply = match (request.kind, history) {
                    (Some(PeerKind::AskHistory), Some(History { has_voted, has_entries })) => {
                        encoded(&thalweg_wire::peer::History { has_voted, has_entries }, request.id)
                    }
                    (Some(PeerKind::Describe), _) => {
                        let none = "";
                        let (zone, software, http, native, resp) = (none, none, none, none, none);
                        encoded(&Description { name: "n2", zone, software, http, native, resp }, request.id)
                    }
                    _ => encoded(&Failed { class: Action::Fix, code, text, leader: None, address: "" }, request.id),
                };
                ready(reply.unwrap()).boxed_local()
            })
            .await;
            let [link] = server.links([Channel::Control]);
            *answer.borrow_mut() = Some(ask(&link, Instant::now() + ASK_LIMIT * 10).await);
        });
        found.take().expect("an answer")
    }

    #[test]
    fn only_a_node_that_says_so_is_empty() {
        let history = |has_voted, has_entries| Some(History { has_voted, has_entries });
        assert_eq!(asked(history(false, false)), Answer::Empty(SERVER, "n2".to_owned()));
        for (used, part) in [
            (history(true, false), "voted"),
            (history(false, true), "data"),
            (history(true, true), "data"),
            (None, "earlier version"),
        ] {
            let answer = asked(used);
            assert!(matches!(&answer, Answer::InUse(reason) if reason.contains(part)), "{answer:?}");
        }
    }
}
