//! The node to which this node sends batches of client commands, and the rule that keeps their order if a node refuses
//! them.
//!
//! A batch that its receiver has refused unwritten may be sent to another leader. It must not be sent after a later
//! batch: a client that does not wait for replies would see its commands executed in another order. So once a new batch
//! was sent to another node, earlier refused batches are not sent again.
//!
//! Owns: this rule. Does not own: the batches (`proposals`).

use thalweg_types::NodeId;

/// Number of a run: consecutive batches that were all sent to one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run(u64);

/// The node to which this node sends its batches of client commands at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    /// Node to which the latest batch was sent; `None` before the first batch.
    node: Option<NodeId>,
    run: Run,
    /// Run (consecutive batches to one node) whose refused batches may still be sent to `node`; `None` once a new batch
    /// was sent to `node`, because they would arrive after it.
    again: Option<Run>,
}

impl Target {
    /// Notes that a new batch is sent to `node`. Returns the batch's run (the consecutive batches to one node to which
    /// it belongs), and the new target.
    pub(crate) fn send(self, node: NodeId) -> (Run, Self) {
        let continues = self.node == Some(node) && self.again.is_none();
        let run = if continues { self.run } else { Run(self.run.0 + 1) };
        (run, Self { node: Some(node), run, again: None })
    }

    /// Notes that a refused batch of the run `refused` (consecutive batches to one node) is sent to another node.
    /// Returns the batch's new run, and the new target; `None` if the batch must not be sent again, because a later
    /// batch was sent to another node.
    pub(crate) fn send_again(self, refused: Run, node: NodeId) -> Option<(Run, Self)> {
        if self.run == refused {
            let run = Run(self.run.0 + 1);
            return Some((run, Self { node: Some(node), run, again: Some(refused) }));
        }
        (self.again == Some(refused) && self.node == Some(node)).then_some((self.run, self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const C: NodeId = NodeId(3);

    #[test]
    fn refused_batches_go_to_the_next_leader_in_their_order() {
        let (first, target) = Target::default().send(A);
        let (second, target) = target.send(A);
        assert_eq!(first, second);
        let (again, target) = target.send_again(first, B).expect("no batch has gone elsewhere");
        assert_eq!(target.send_again(second, B), Some((again, target)));
        assert_eq!(target.send_again(second, C), None, "the first one has gone to another node");
        // The next leader refuses the same batches too.
        assert!(target.send_again(again, C).is_some());
    }

    #[test]
    fn a_batch_is_not_sent_behind_a_newer_one() {
        let (refused, target) = Target::default().send(A);
        let (_, moved) = target.send(B);
        assert_eq!(moved.send_again(refused, B), None);
        // A refused batch is also not sent again after a newer batch for the node to which batches of its run were sent
        // again.
        let (_, again) = target.send_again(refused, B).unwrap();
        let (newer, target) = again.send(B);
        assert_eq!(target.send_again(refused, B), None);
        assert!(target.send_again(newer, C).is_some());
    }
}
