package org.holdfast.spark;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.TableChange;

/** ALTER TABLE, one change at a time, as Holdfast's Python side reads it. */
final class Changes {
  private Changes() {}

  static Map<String, Object> describe(TableChange change) {
    Map<String, Object> described = new HashMap<>();
    if (change instanceof TableChange.AddColumn add) {
      refuse(add.defaultValue() != null, "a column with a default value");
      refuse(!add.isNullable(), "a column that may not be null: rows that are there have null in it");
      refuse(add.position() != null, "a column at a place: new columns come last");
      described.put("add", Arrays.asList(add.fieldNames()));
      described.put("type", add.dataType().json());
    } else if (change instanceof TableChange.RenameColumn rename) {
      described.put("rename", Arrays.asList(rename.fieldNames()));
      described.put("to", rename.newName());
    } else if (change instanceof TableChange.DeleteColumn delete) {
      described.put("drop", Arrays.asList(delete.fieldNames()));
      described.put("if_exists", delete.ifExists());
    } else if (change instanceof TableChange.UpdateColumnType type) {
      described.put("retype", Arrays.asList(type.fieldNames()));
      described.put("type", type.newDataType().json());
    } else if (change instanceof TableChange.SetProperty set) {
      described.put("set", set.property());
      described.put("value", set.value());
    } else if (change instanceof TableChange.RemoveProperty remove) {
      described.put("unset", remove.property());
    } else {
      refuse(true, "this change (" + change.getClass().getSimpleName() + ")");
    }
    return described;
  }

  private static void refuse(boolean wanted, String what) {
    if (wanted) {
      throw new UnsupportedOperationException("ALTER TABLE cannot make " + what);
    }
  }
}
