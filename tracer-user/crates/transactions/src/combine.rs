//! Makes the verdict on a call's parent of what its evidence proposes: the only place that decides it.

use tracer_model::Grade;

use super::evidence::{Doubt, Evidence, Reason, Weight};
use super::slot::Slot;

/// What the answer of a request says about a call's parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// Nothing yet.
    None,
    /// The group that read the call's reply began the answer of this request.
    For(Slot),
    /// Two groups that read it answered different requests, or it contradicts certain evidence.
    Split,
}

impl Vote {
    /// With what a further answer says.
    #[must_use]
    pub fn and(self, request: Slot) -> Self {
        match self {
            Self::None => Self::For(request),
            Self::For(other) if other == request => self,
            Self::For(_) | Self::Split => Self::Split,
        }
    }
}

/// A proposed parent of a call, and all that speaks for and against it.
#[derive(Clone, Copy, Debug)]
pub struct Proposal {
    /// The parent; none: evidence for none.
    pub parent: Option<Slot>,
    /// What shows it.
    pub evidence: Evidence,
    /// What the request's answer says.
    pub vote: Vote,
    /// What makes the evidence void.
    pub doubt: Option<Doubt>,
}

impl Proposal {
    /// The parent that the evidence alone shows.
    pub fn of(parent: Slot, evidence: Evidence) -> Self {
        Self { parent: Some(parent), evidence, vote: Vote::None, doubt: None }
    }

    /// No parent.
    pub fn none(evidence: Evidence) -> Self {
        Self { parent: None, evidence, vote: Vote::None, doubt: None }
    }

    /// The same with a reason against it.
    #[must_use]
    pub fn doubted(self, doubt: Option<Doubt>) -> Self {
        Self { doubt, ..self }
    }
}

/// The parent of a call, or its most probable one where the grade is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The parent.
    pub parent: Option<Slot>,
    /// How sure that is.
    pub grade: Grade,
    /// Why.
    pub reason: Reason,
}

impl Verdict {
    /// Whether the parent is more than a guess: an ambiguous one is none.
    pub fn sure(self) -> Option<Slot> {
        self.parent.filter(|_| matches!(self.grade, Grade::Certain | Grade::Confirmed))
    }
}

/// The verdict.
///
/// | doubt | parent | evidence | vote | verdict |
/// | --- | --- | --- | --- | --- |
/// | yes | any | any | any | ambiguous: the doubt |
/// | no | any | certain | any | certain, also that there is none |
/// | no | yes | confirmed | any | confirmed |
/// | no | yes | with answer | same | confirmed |
/// | no | yes | one side | same | confirmed: both sides |
/// | no | yes | other than certain | none | ambiguous: the evidence |
/// | no | yes | other than certain | another, split | ambiguous: the sides disagree |
/// | no | none | other than certain | one | ambiguous: only the reply |
/// | no | none | other than certain | none, split | orphan: the evidence |
pub fn combine(proposal: &Proposal) -> Verdict {
    let Proposal { parent, evidence, vote, doubt } = *proposal;
    let verdict = |parent, grade, reason| Verdict { parent, grade, reason };
    let why = Reason::For(evidence);
    if let Some(doubt) = doubt {
        return verdict(parent, Grade::Ambiguous, Reason::Against(doubt));
    }
    match (parent, evidence.weight(), vote) {
        (_, Weight::Certain, _) => verdict(parent, Grade::Certain, why),
        (Some(_), Weight::Confirmed, _) => verdict(parent, Grade::Confirmed, why),
        (Some(slot), Weight::WithAnswer, Vote::For(other)) if slot == other => verdict(parent, Grade::Confirmed, why),
        (Some(slot), Weight::OneSide, Vote::For(other)) if slot == other => {
            verdict(parent, Grade::Confirmed, Reason::For(Evidence::BothSides))
        }
        (Some(_), _, Vote::None) => verdict(parent, Grade::Ambiguous, why),
        (Some(_), ..) => verdict(parent, Grade::Ambiguous, Reason::Against(Doubt::SidesDisagree)),
        (None, _, Vote::For(slot)) => verdict(Some(slot), Grade::Ambiguous, Reason::For(Evidence::OnlyReply)),
        (None, ..) => verdict(None, Grade::Orphan, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of a parent, a weight, a vote and a doubt, with the row of the table that holds for it.
    #[test]
    fn every_combination_has_its_row() {
        let (this, other) = (Slot::numbered(1), Slot::numbered(2));
        let all = [Evidence::OneRequest, Evidence::ReadingCallback, Evidence::TookReply, Evidence::InGroup];
        let weights = [Weight::Certain, Weight::Confirmed, Weight::WithAnswer, Weight::OneSide];
        assert_eq!(all.map(Evidence::weight), weights, "one of each weight");
        let (sides, reply) = (Reason::For(Evidence::BothSides), Reason::For(Evidence::OnlyReply));
        let disagree = Reason::Against(Doubt::SidesDisagree);
        for evidence in all {
            let own = Reason::For(evidence);
            for vote in [Vote::None, Vote::For(this), Vote::For(other), Vote::Split] {
                for parent in [None, Some(this)] {
                    let moves = Proposal { parent, evidence, vote, doubt: Some(Doubt::Moves) };
                    let expected = Verdict { parent, grade: Grade::Ambiguous, reason: Reason::Against(Doubt::Moves) };
                    assert_eq!(combine(&moves), expected);

                    let (parent, grade, reason) = match (parent, evidence.weight()) {
                        (_, Weight::Certain) => (parent, Grade::Certain, own),
                        (Some(_), Weight::Confirmed) => (parent, Grade::Confirmed, own),
                        (Some(_), weight) => match vote {
                            Vote::None => (parent, Grade::Ambiguous, own),
                            Vote::For(slot) if slot == this && weight == Weight::OneSide => {
                                (parent, Grade::Confirmed, sides)
                            }
                            Vote::For(slot) if slot == this => (parent, Grade::Confirmed, own),
                            Vote::For(_) | Vote::Split => (parent, Grade::Ambiguous, disagree),
                        },
                        (None, _) => match vote {
                            Vote::For(slot) => (Some(slot), Grade::Ambiguous, reply),
                            Vote::None | Vote::Split => (None, Grade::Orphan, own),
                        },
                    };
                    let verdict = combine(&Proposal { doubt: None, ..moves });
                    assert_eq!(verdict, Verdict { parent, grade, reason });
                    assert_eq!(verdict.sure().is_some(), parent.is_some() && grade != Grade::Ambiguous);
                }
            }
        }
    }

    #[test]
    fn votes_for_two_requests_are_split_for_good() {
        let (this, other) = (Slot::numbered(1), Slot::numbered(2));
        assert_eq!(Vote::None.and(this).and(this), Vote::For(this));
        assert_eq!(Vote::None.and(this).and(other).and(this), Vote::Split);
    }
}
