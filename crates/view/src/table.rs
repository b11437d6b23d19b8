//! Tables as text: columns with a title, a width and the text of a row.

use std::iter::once;

/// A column of rows: its title, its minimum width (negative: aligned to the left), and its text.
#[allow(missing_debug_implementations)]
#[derive(Clone, Copy)]
pub struct Column<'a, R>(pub &'a str, pub isize, pub &'a dyn Fn(&R) -> String);

/// Returns the line of titles, and one for each row. Two spaces precede a column that is aligned to the left, one space
/// any other; none precedes the first column.
pub fn text<'a, R: 'a>(columns: &[Column<'_, R>], rows: impl Iterator<Item = &'a R> + Clone) -> String {
    let mut lines = vec![String::new(); rows.clone().count() + 1];
    for Column(title, width, text) in columns {
        let cells: Vec<String> = once(title.to_string()).chain(rows.clone().map(text)).collect();
        let wide = cells.iter().map(|cell| cell.chars().count()).fold(width.unsigned_abs(), usize::max);
        for (line, cell) in lines.iter_mut().zip(cells) {
            *line += match (line.is_empty(), *width < 0) {
                (true, _) => "",
                (false, true) => "  ",
                (false, false) => " ",
            };
            *line += &if *width < 0 { format!("{cell:<wide$}") } else { format!("{cell:>wide$}") };
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Lists the columns of rows of a type, each with its title, width and value.
#[macro_export]
macro_rules! columns {
    ($row:ident: $of:ty; $($title:tt $width:literal $value:expr),+ $(,)?) => {
        [$($crate::table::Column($title, $width, &|$row: &$of| $value.to_string())),+]
    };
}

/// Defines the type of a row by its fields: the name in JSON, the value, and the columns of the text that show it.
#[macro_export]
macro_rules! rows {
    ($row:ident: $type:ident($from:ty as $source:pat_param) {
        $($(#[$meta:meta])* $field:ident: $kind:ty = $value:expr $(, $title:literal $width:literal $text:expr)*;)+
    }) => {
        #[derive(Clone, Debug, Default, serde::Serialize)]
        pub struct $type {
            $($(#[$meta])* pub $field: $kind),+
        }

        impl $type {
            pub const COLUMNS: &[$crate::table::Column<'_, Self>] =
                &$crate::columns![$row: Self; $($($title $width $text,)*)+];

            pub fn new($source: $from) -> Self {
                Self { $($field: $value),+ }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_as_wide_as_their_longest_text() {
        let columns = columns![row: (&str, u32); "n" 3 row.1, "name" -5 row.0, "n" 3 row.1];
        let text = super::text(&columns, [("a", 1), ("longest", 12345)].iter());
        assert_eq!(text, "    n  name        n\n    1  a           1\n12345  longest 12345\n");
    }
}
