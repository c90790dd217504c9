//! With threads of this process: their own nice values are raised and lowered, which needs root.

use std::sync::mpsc::{Sender, channel};

use super::*;

/// A thread that waits until it is dropped, or does what it is sent.
struct Sleeper {
    tid: u32,
    jobs: Option<Sender<Box<dyn FnOnce() + Send>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Sleeper {
    fn start() -> Self {
        let (jobs, queue) = channel::<Box<dyn FnOnce() + Send>>();
        let (tell, told) = channel();
        let thread = std::thread::spawn(move || {
            tell.send(tracer_host::guard::self_process::thread_id()).unwrap();
            while let Ok(job) = queue.recv() {
                job();
            }
        });
        let tid = told.recv().unwrap();
        Self { tid, jobs: Some(jobs), thread: Some(thread) }
    }

    /// One whose own value is 0, whatever the tests run at.
    fn at_zero() -> Self {
        let sleeper = Self::start();
        thread::set(sleeper.tid, 0).unwrap();
        sleeper
    }

    fn stat(&self) -> ThreadStat {
        thread::read(own(), self.tid).unwrap()
    }

    fn nice(&self) -> i8 {
        self.stat().nice
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        drop(self.jobs.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

fn own() -> u32 {
    std::process::id()
}

/// One test at a time: they share this process, whose threads are searched for inherited values. `None` where priorities
/// cannot be changed.
fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    thread::obstacle().is_none().then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn change(tid: u32, delta: i8) -> Order {
    Order::Change { tid, tgid: own(), class: 0, delta }
}

/// Carries out orders in this thread.
fn books(lever: &Lever, orders: &[Order]) {
    let mut books = lever.shared.books();
    for order in orders {
        books.carry_out(*order, &lever.shared.counts);
    }
}

fn counts(lever: &Lever) -> (u64, u64, Vec<&'static str>) {
    let actions = &lever.actions()[0];
    (actions.applied, actions.restored, actions.refused.keys().copied().collect())
}

#[test]
fn a_thread_gets_its_own_value_back() {
    let Some(_turn) = turn() else { return };
    let (lever, _orders) = Lever::with(None, 1);
    let sleeper = Sleeper::at_zero();
    thread::set(sleeper.tid, 3).unwrap();
    books(&lever, &[change(sleeper.tid, -11)]);
    assert_eq!(sleeper.nice(), -8);
    // From its own value, not from the changed one; within the kernel's bounds.
    books(&lever, &[change(sleeper.tid, 11)]);
    assert_eq!(sleeper.nice(), 14);
    books(&lever, &[Order::Restore { tid: sleeper.tid, class: 0 }]);
    assert_eq!(sleeper.nice(), 3);
    thread::set(sleeper.tid, 15).unwrap();
    books(&lever, &[change(sleeper.tid, 11)]);
    assert_eq!(sleeper.nice(), 19);
    assert!(lever.restore_all());
    assert_eq!(sleeper.nice(), 15);
    books(&lever, &[change(sleeper.tid, 11)]);
    assert_eq!(sleeper.nice(), 15, "closed");
    assert_eq!(counts(&lever), (3, 2, vec![]));
}

#[test]
fn what_others_set_stays() {
    let Some(_turn) = turn() else { return };
    let (lever, _orders) = Lever::with(None, 1);
    let sleeper = Sleeper::at_zero();
    books(&lever, &[change(sleeper.tid, 11)]);
    thread::set(sleeper.tid, 5).unwrap();
    books(&lever, &[Order::Restore { tid: sleeper.tid, class: 0 }, change(sleeper.tid, -11)]);
    assert_eq!((sleeper.nice(), counts(&lever)), (5, (1, 0, vec!["changed_by_others"])));
    assert!(lever.restore_all());
    assert_eq!(sleeper.nice(), 5);
}

#[test]
fn ended_threads_and_foreign_ids_are_left_alone() {
    let Some(_turn) = turn() else { return };
    let (lever, _orders) = Lever::with(None, 1);
    let tid = Sleeper::start().tid;
    books(&lever, &[change(tid, 11), Order::Change { tid: own(), tgid: 1, class: 0, delta: 11 }]);
    assert_eq!(counts(&lever), (0, 0, vec!["ended"]));
}

#[test]
fn real_time_threads_are_left_alone() {
    let Some(_turn) = turn() else { return };
    let (lever, _orders) = Lever::with(None, 1);
    let sleeper = Sleeper::at_zero();
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: plain system calls on a thread of this process.
    let idle = unsafe { libc::sched_setscheduler(sleeper.tid as i32, libc::SCHED_IDLE, &raw const parameters) };
    assert_eq!(idle, 0);
    books(&lever, &[change(sleeper.tid, -11)]);
    assert_eq!((sleeper.nice(), counts(&lever)), (0, (0, 0, vec!["policy"])));
}

#[test]
fn a_thread_made_meanwhile_gets_its_makers_own_value() {
    let Some(_turn) = turn() else { return };
    let (lever, _orders) = Lever::with(None, 1);
    let maker = Sleeper::at_zero();
    books(&lever, &[change(maker.tid, 11)]);
    let make = || {
        let (tell, told) = channel();
        maker.jobs.as_ref().unwrap().send(Box::new(move || tell.send(Sleeper::start()).unwrap())).unwrap();
        told.recv().unwrap()
    };
    let (reported, unreported, other) = (make(), make(), make());
    assert_eq!((reported.nice(), unreported.nice()), (11, 11));
    thread::set(other.tid, 10).unwrap();
    books(&lever, &[Order::Inherited { parent: maker.tid, tid: reported.tid, tgid: own() }]);
    assert_eq!((reported.nice(), unreported.nice()), (0, 11));
    lever.shared.books().sweep();
    assert_eq!((unreported.nice(), other.nice(), maker.nice()), (0, 10, 11));
    assert!(lever.restore_all());
}

/// The state file of a killed agent, read by the next one.
#[test]
fn a_killed_agent_leaves_nothing_behind() {
    let Some(_turn) = turn() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let (sleeper, reused, set) = (Sleeper::at_zero(), Sleeper::at_zero(), Sleeper::at_zero());
    {
        let journal = Lock::take(&path).unwrap().begin().unwrap();
        let (lever, _orders) = Lever::with(Some(journal), 1);
        books(&lever, &[change(sleeper.tid, 11), change(set.tid, 11), change(sleeper.tid, -11)]);
        thread::set(set.tid, 4).unwrap();
        // As if an earlier thread had had this id.
        let entry = ChangedThread { start: 1, ..lever.shared.books().threads[&sleeper.tid].entry };
        lever.shared.books().write(9, Some(&ChangedThread { tid: reused.tid, ..entry })).unwrap();
        thread::set(reused.tid, -11).unwrap();
        assert_eq!((sleeper.nice(), set.nice()), (-11, 4));
        // Dropped without restoring.
    }
    let recovered = recover_left(&path).unwrap().unwrap();
    assert_eq!((recovered.restored, recovered.gone, recovered.failed), (1, 2, 0));
    assert_eq!((sleeper.nice(), set.nice()), (0, 4));
    assert_eq!(recover_left(&path).unwrap(), None);
}

#[test]
fn the_lever_restores_by_itself_when_the_pipeline_is_silent_or_gone() {
    let Some(_turn) = turn() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (lever, _) = Lever::start(&dir.path().join("state"), 1).unwrap();
    let sleeper = Sleeper::at_zero();
    let until = |nice: i8| {
        let begin = Instant::now();
        while sleeper.nice() != nice {
            assert!(begin.elapsed() < Duration::from_secs(20), "nice {}", sleeper.nice());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    lever.heartbeat();
    lever.order(vec![change(sleeper.tid, 11)]).unwrap();
    until(11);
    until(0);
    assert!(lever.take_reset() && !lever.take_reset());
    lever.heartbeat();
    lever.order(vec![change(sleeper.tid, 11)]).unwrap();
    until(11);
    drop(lever);
    until(0);
}
