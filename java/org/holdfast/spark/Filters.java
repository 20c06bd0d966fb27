package org.holdfast.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Spark's conditions in Lance's SQL, where that is safe.
 *
 * <p>A condition that is pushed down may keep rows that Spark then drops; it must never drop a
 * row that Spark keeps. One that is exact keeps just the same rows. Lance puts a
 * NaN with a sign below all numbers, Spark above. So NaN and lower bounds of floats are not
 * translated.
 */
final class Filters {
  private static final DateTimeFormatter TIME = DateTimeFormatter.ofPattern("uuuu-MM-dd HH:mm:ss.SSSSSS");

  /** A condition in Lance's SQL. */
  record Sql(String text, boolean exact) {}

  private final JsonNode columns; // name -> {sql, kind}, of those that conditions may name

  Filters(JsonNode columns) {
    this.columns = columns;
  }

  /** Returns the condition, or null if it is not translated. */
  Sql translate(Predicate predicate) {
    Expression[] parts = predicate.children();
    switch (predicate.name()) {
      case "AND":
        return both(parts);
      case "OR":
        return either(parts);
      case "NOT":
        return not(parts[0]);
      case "IS_NULL":
      case "IS_NOT_NULL":
        return nullTest(parts[0], predicate.name().equals("IS_NULL"));
      case "=":
      case "<":
      case "<=":
      case ">":
      case ">=":
        return comparison(parts, predicate.name());
      case "<=>":
        return nullSafe(parts);
      case "IN":
        return in(parts);
      case "STARTS_WITH":
        return startsWith(parts);
      case "BOOLEAN_EXPRESSION":
        return isTrue(parts[0]);
      default:
        return null;
    }
  }

  private Sql translate(Expression expression) {
    return expression instanceof Predicate predicate ? translate(predicate) : isTrue(expression);
  }

  /** Leaves out a side that is not translated: the rest keeps more rows, never fewer. */
  private Sql both(Expression[] parts) {
    Sql left = translate(parts[0]);
    Sql right = translate(parts[1]);
    if (left == null || right == null) {
      Sql one = left == null ? right : left;
      return one == null ? null : new Sql(one.text, false);
    }
    return new Sql("(" + left.text + ") AND (" + right.text + ")", left.exact && right.exact);
  }

  private Sql either(Expression[] parts) {
    Sql left = translate(parts[0]);
    Sql right = translate(parts[1]);
    if (left == null || right == null) {
      return null;
    }
    return new Sql("(" + left.text + ") OR (" + right.text + ")", left.exact && right.exact);
  }

  /** Only of what is exact: the opposite of "too many rows" is too few. */
  private Sql not(Expression part) {
    Sql inner = translate(part);
    return inner == null || !inner.exact ? null : new Sql("NOT (" + inner.text + ")", true);
  }

  private Sql nullTest(Expression part, boolean isNull) {
    JsonNode column = column(part);
    return column == null ? null : new Sql(sql(column) + (isNull ? " IS NULL" : " IS NOT NULL"), true);
  }

  private Sql isTrue(Expression part) {
    JsonNode column = column(part);
    return column == null || !kind(column).equals("boolean") ? null : new Sql(sql(column), true);
  }

  private Sql comparison(Expression[] parts, String sign) {
    JsonNode column = column(parts[0]);
    if (column == null) {
      return null;
    }
    String value = literal(parts[1], kind(column));
    if (value == null) {
      return null;
    }
    boolean exact = true;
    if (isFloat(column) && !sign.equals("=")) {
      if (sign.startsWith(">")) {
        return null;
      }
      exact = false; // a NaN with a sign is below everything for Lance
    }
    return new Sql(sql(column) + " " + sign + " " + value, exact);
  }

  /** As "=" with a value; with null it asks for null. Not exact under NOT: null has no place. */
  private Sql nullSafe(Expression[] parts) {
    if (parts[1] instanceof Literal<?> value && value.value() == null) {
      return nullTest(parts[0], true);
    }
    Sql equal = comparison(parts, "=");
    return equal == null ? null : new Sql(equal.text, false);
  }

  private Sql in(Expression[] parts) {
    JsonNode column = column(parts[0]);
    if (column == null || parts.length < 2) {
      return null;
    }
    List<String> values = new ArrayList<>();
    for (int i = 1; i < parts.length; i++) {
      String value = literal(parts[i], kind(column));
      if (value == null) {
        return null;
      }
      values.add(value);
    }
    return new Sql(sql(column) + " IN (" + String.join(", ", values) + ")", true);
  }

  /** As a range of bytes, which needs no escapes and can use an index. */
  private Sql startsWith(Expression[] parts) {
    JsonNode column = column(parts[0]);
    if (column == null || !kind(column).equals("string")) {
      return null;
    }
    String value = literal(parts[1], "string");
    return value == null ? null : new Sql("starts_with(" + sql(column) + ", " + value + ")", true);
  }

  private JsonNode column(Expression expression) {
    if (expression instanceof NamedReference reference && reference.fieldNames().length == 1) {
      return columns.get(reference.fieldNames()[0]);
    }
    return null;
  }

  private static String sql(JsonNode column) {
    return column.get("sql").asText();
  }

  private static String kind(JsonNode column) {
    return column.get("kind").asText();
  }

  private static boolean isFloat(JsonNode column) {
    return kind(column).equals("float");
  }

  /** Returns a value in Lance's SQL; null for null, and for what has no exact spelling. */
  private static String literal(Expression expression, String kind) {
    if (!(expression instanceof Literal<?> literal) || literal.value() == null) {
      return null;
    }
    Object value = literal.value();
    switch (kind) {
      case "integer":
        boolean whole = value instanceof Long || value instanceof Integer || value instanceof Short || value instanceof Byte;
        return whole && ((Number) value).longValue() != Long.MIN_VALUE ? value.toString() : null;
      case "boolean":
        return value instanceof Boolean ? value.toString() : null;
      case "string":
        return value instanceof UTF8String text && text.isValid() && text.toString().indexOf('\0') < 0
            ? "'" + text.toString().replace("'", "''") + "'"
            : null;
      case "date":
        return value instanceof Integer days ? date(days) : null;
      case "timestamp":
        return value instanceof Long micros ? timestamp(micros) : null;
      case "float":
        return value instanceof Float || value instanceof Double ? number(((Number) value).doubleValue()) : null;
      default:
        return null;
    }
  }

  private static String date(int days) {
    LocalDate day = LocalDate.ofEpochDay(days);
    boolean plain = day.getYear() >= 1 && day.getYear() <= 9999;
    return plain ? "date '" + day + "'" : null;
  }

  /** Lance reads a time as nanoseconds, which end in the years 1677 and 2262. */
  private static String timestamp(long micros) {
    LocalDateTime time = LocalDateTime.ofEpochSecond(
        Math.floorDiv(micros, 1_000_000L), (int) Math.floorMod(micros, 1_000_000L) * 1000, ZoneOffset.UTC);
    boolean plain = time.getYear() >= 1700 && time.getYear() <= 2200;
    return plain ? "timestamp '" + TIME.format(time) + "'" : null;
  }

  private static String number(double value) {
    if (Double.isNaN(value) || Double.isInfinite(value)) {
      return null;
    }
    return String.format(Locale.ROOT, "%s", value); // the shortest text that reads back as it was
  }
}
