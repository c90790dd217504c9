//! How many bytes a day of a usual host takes.

use super::*;
use crate::history::rows::Seconds;

/// Pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// As seconds of so many requests have them: whole nanoseconds that do not repeat.
    fn seconds(&mut self, count: u64) -> f64 {
        (0..count.min(4)).map(|_| (self.next() % 4_000_000 * count / 4) as f64).sum::<f64>() / 1e9
    }
}

/// A window with 25 classes of requests and 25 of calls, each from two callers for two first requests, and four goals.
fn usual_window(start_s: u64, numbers: &mut Numbers) -> WindowRows {
    let (start_ns, length_s) =
        (start_s * 1_000_000_000 + numbers.next() % 1_000_000, 10.0 + numbers.next() as f64 / 1e12);
    let host: Arc<str> = "web-1.example.org".into();
    let mut window = WindowRows {
        host: HostRow { start_ns, length_s, host: Arc::clone(&host), ..HostRow::default() },
        ..WindowRows::default()
    };
    for n in 0..50_u64 {
        let count = 20 + numbers.next() % 400;
        let is_call = n % 2 == 1;
        let side: Arc<str> = if is_call { "client" } else { "server" }.into();
        let mut class = ClassRow {
            start_ns,
            length_s,
            host: Arc::clone(&host),
            service_name: format!("service-{}", n / 10).into(),
            request_class: format!("GET /api/things/{n}/{{id}}").into(),
            side: Arc::clone(&side),
            protocol: "http".into(),
            count,
            errors: u64::from(numbers.next().is_multiple_of(20)),
            duration_s: numbers.seconds(count),
            count_by_size: [count / 3, count / 3, count - 2 * (count / 3)],
            ..ClassRow::default()
        };
        (0..count).for_each(|_| class.duration_histogram.add(200_000 << (numbers.next() % 5), 1));
        if !is_call {
            let mut seconds = || numbers.seconds(count);
            (class.cpu_s, class.runqueue_s, class.blocked_s) = (seconds(), seconds(), seconds());
            (class.cpu_s_squared, class.queue_s, class.downstream_s) = (seconds(), seconds(), seconds());
            class.cpu_s_by_size = [seconds(), seconds(), seconds()];
            class.calls = count;
        }
        for caller in 0..2_u64 {
            let mut edge = EdgeRow {
                start_ns,
                length_s,
                host: Arc::clone(&host),
                service_name: Arc::clone(&class.service_name),
                request_class: Arc::clone(&class.request_class),
                side: Arc::clone(&side),
                protocol: "http".into(),
                caller_service: format!("service-{}", caller + n / 20).into(),
                caller_class: format!("GET /api/{caller}").into(),
                callee_service: if is_call { "service-9" } else { "" }.into(),
                root: "class".into(),
                root_service: "front".into(),
                root_class: format!("GET /api/{caller}").into(),
                count: (count / 2) as i64,
                errors: i64::from(numbers.next().is_multiple_of(20)),
                duration_s: Seconds(numbers.seconds(count / 2)),
                ..EdgeRow::default()
            };
            if !is_call {
                let mut seconds = || Seconds(numbers.seconds(count / 2));
                (edge.queue_s, edge.cpu_s, edge.runqueue_s) = (seconds(), seconds(), seconds());
                (edge.blocked_s, edge.downstream_s) = (seconds(), seconds());
            }
            window.edges.push(edge);
        }
        window.classes.push(class);
    }
    for n in 0..4_u64 {
        let count = 100 + numbers.next() % 400;
        window.goals.push(GoalRow {
            start_ns,
            length_s,
            host: Arc::clone(&host),
            service_class: format!("class-{n}").into(),
            service_name: "service-1".into(),
            goal: "p99".into(),
            goal_s: 0.04,
            count,
            attained: count - 3,
            missed: 3,
            response_s: numbers.seconds(count),
            cpu_s: numbers.seconds(count),
            ..GoalRow::default()
        });
    }
    window
}

/// Rows of the windows of an hour, one table at a time.
fn hour<R: HistoryRow>(rows: impl Fn(&WindowRows) -> &[R]) -> (usize, u64) {
    let (mut builder, mut numbers) = (Builder::<R>::new().unwrap(), Numbers(7));
    for n in 0..360 {
        push_all(&mut builder, rows(&usual_window(HOUR_S + n * 10, &mut numbers))).unwrap();
    }
    (builder.rows(), builder.finish().unwrap().len() as u64)
}

#[test]
fn a_day_of_fifty_classes_takes_less_than_sixty_megabytes() {
    let tables = [
        hour(|window| window.classes.as_slice()),
        hour(|window| window.edges.as_slice()),
        hour(|window| window.goals.as_slice()),
        hour(|window| std::slice::from_ref(&window.host)),
    ];
    let each = tables.map(|(rows, bytes)| bytes as f64 / rows as f64);
    let day = 24 * tables.iter().map(|(_, bytes)| bytes).sum::<u64>();
    eprintln!("bytes a row of classes, edges, goals and hosts: {each:.1?}; {:.1} MB a day", day as f64 / 1e6);
    assert_eq!(tables.map(|(rows, _)| rows), [360 * 50, 360 * 100, 360 * 4, 360]);
    assert!(day < 60_000_000, "{day} {each:?}");
}
